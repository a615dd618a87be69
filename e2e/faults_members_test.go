package e2e

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// memberFaults are extensions that bundle MCP servers.
var memberFaults = []fault{
	{
		mode: "one-of-two-members-dies", does: "bundles two MCP servers (`[mcp_servers]`), one of which is killed",
		caller: "the other one, and its parent, answer all the while", operator: "`<id>.<server>` for each, with `parent`; one restart of the one",
		bridge: "supervises each server by itself; `extctl restart ID` restarts them all",
		manifest: `
[mcp_servers.one]
type = "stdio"
command = "$EXE"
env = { E2E_MODE = "child:one-of-two-members-dies" }
[mcp_servers.two]
type = "stdio"
command = "$EXE"
env = { E2E_MODE = "child:one-of-two-members-dies" }
`,
		mcp:   true,
		tools: []string{"Get-Pid"},
		kid: func(k *kid) {
			k.serve(only("Get-Pid", func(m message) { k.result(m, strconv.Itoa(os.Getpid())) }))
		},
		test: func(h *host) {
			one, two := h.member("one"), h.member("two")
			h.becomes(heartbeat.Ready)
			if e := h.entry(); e.Spec == nil || len(e.Spec.Tools) != 0 || e.Spec.Parent != "" {
				h.Errorf("the container: %+v", e.Spec)
			}
			pid := func(m *host) int {
				got, err := m.call("Get-Pid", "{}")
				if err != nil {
					m.Errorf("%s: %v", m.id, err)
				}
				return number(got)
			}
			first, other := pid(one), pid(two)
			if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
				h.Fatal(err)
			}
			one.eventually("it has another process", func() bool {
				got, err := one.call("Get-Pid", "{}")
				return err == nil && number(got) != first
			})
			if pid(two) != other {
				h.Error("the other one was restarted")
			}
			if s := two.entry().State.Instances[0]; s.Restarts != 0 {
				h.Errorf("the other one: %+v", s)
			}
			_, err := h.ask("tools/call", `{"name":"Get-Pid"}`)
			h.fails(err, rpc.CodeMethodNotFound, rpc.RanNo, "only holds MCP servers")
			h.restart()
			two.eventually("the other one has another process, too", func() bool {
				got, err := two.call("Get-Pid", "{}")
				return err == nil && number(got) != other
			})
		},
	},
}

// member is the view of one member of the extension, once it is ready.
func (h *host) member(server string) *host {
	h.Helper()
	m := &host{T: h.T, w: h.w, id: h.id + "." + server, client: h.client}
	e := m.ready()
	if e.Spec.Parent != h.id || !strings.HasPrefix(e.Spec.Tools[0].Name, "ext_"+h.id+"_"+server+"_") {
		h.Errorf("member %s: parent %q, tools %+v", server, e.Spec.Parent, e.Spec.Tools)
	}
	return m
}

// number is what a tool has answered.
func number(text string) int {
	n, _ := strconv.Atoi(text) // 0 is no process
	return n
}
