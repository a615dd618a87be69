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
		mode: "one-of-two-members-exits", does: "bundles two MCP servers (`[mcp_servers]`), one of which is killed",
		caller: "answers of the other server, without a pause", operator: "`<id>.<server>` for each, with `parent`; one restart of the killed server",
		bridge: "supervises each server separately; `extctl restart ID` restarts all of them",
		manifest: `
[mcp_servers.one]
type = "stdio"
command = "$EXE"
env = { E2E_MODE = "child:one-of-two-members-exits" }
[mcp_servers.two]
type = "stdio"
command = "$EXE"
env = { E2E_MODE = "child:one-of-two-members-exits" }
`,
		mcp:   true,
		tools: []string{"Get-Pid"},
		child: func(k *testChild) {
			k.serve(only("Get-Pid", func(m message) { k.result(m, strconv.Itoa(os.Getpid())) }))
		},
		test: func(h *host) {
			one, two := h.member("one"), h.member("two")
			h.waitForState(heartbeat.Ready)
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
			_, err := h.request("tools/call", `{"name":"Get-Pid"}`)
			h.wantError(err, rpc.CodeMethodNotFound, rpc.RanNo, "only holds MCP servers")
			h.restart()
			two.eventually("the other server has another process, too", func() bool {
				got, err := two.call("Get-Pid", "{}")
				return err == nil && number(got) != other
			})
		},
	},
}

// member waits until one member of the extension is ready, and returns a host for tests of that member.
func (h *host) member(server string) *host {
	h.Helper()
	m := &host{T: h.T, w: h.w, id: h.id + "." + server, client: h.client}
	e := m.waitReady()
	if e.Spec.Parent != h.id || !strings.HasPrefix(e.Spec.Tools[0].Name, "ext_"+h.id+"_"+server+"_") {
		h.Errorf("member %s: parent %q, tools %+v", server, e.Spec.Parent, e.Spec.Tools)
	}
	return m
}

// number parses the number that a tool returned.
func number(text string) int {
	n, _ := strconv.Atoi(text) // 0 is not the id of a process
	return n
}
