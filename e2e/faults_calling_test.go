package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// entry returns the extension's entry in the catalog.
func (h *host) entry() mesh.Extension {
	e, _ := h.w.catalog.Get(h.id)
	return e
}

// waitForState waits until the catalog shows the extension in this state, with a reason that contains all texts.
func (h *host) waitForState(state heartbeat.State, texts ...string) mesh.Extension {
	h.Helper()
	var e mesh.Extension
	for deadline := time.Now().Add(time.Minute); ; sleep(h.Context(), 2*time.Millisecond) {
		e = h.entry()
		if e.State != nil && e.State.State == state && !slices.ContainsFunc(texts, func(text string) bool {
			return !strings.Contains(e.State.Reason, text)
		}) {
			return e
		}
		if time.Now().After(deadline) {
			h.Fatalf("the extension is %+v, want %s with %q", e.State, state, texts)
		}
	}
}

// waitReady waits until the catalog shows the extension as ready, with its tools.
func (h *host) waitReady() mesh.Extension {
	h.Helper()
	h.waitForState(heartbeat.Ready)
	var e mesh.Extension
	h.eventually("its tools are in the catalog", func() bool {
		e = h.entry()
		return e.Spec != nil && len(e.Spec.Tools) > 0
	})
	return e
}

// waitForRestarts waits until the catalog shows the extension as ready after n restarts.
func (h *host) waitForRestarts(n uint64) {
	h.Helper()
	h.eventually(fmt.Sprintf("the catalog shows %d restarts", n), func() bool {
		e := h.entry()
		return e.State != nil && e.State.State == heartbeat.Ready && len(e.State.Instances) == 1 && e.State.Instances[0].Restarts == n
	})
}

// call calls a tool of the extension as an agent does, with a timeout of a minute.
func (h *host) call(tool, args string) (string, error) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), time.Minute)
	defer cancel()
	got, err := h.client.Call(ctx, h.id+"/"+tool, json.RawMessage(args))
	return string(got), err
}

// callSucceeds fails the test unless a call of echo succeeds. After an exit, a call waits for the restart, but only for a
// second if the catalog does not show the restart yet. A busy machine may need longer; then another call must succeed.
func (h *host) callSucceeds() {
	h.Helper()
	const args = `{"is":"well"}`
	began := time.Now()
	got, err := h.call("echo", args)
	if e := rpc.AsError(err); err != nil && e.Code == rpc.CodeUnavailable && e.Details().Ran == rpc.RanNo && time.Since(began) > time.Second {
		h.waitForSuccess()
	} else if err != nil || got != args {
		h.Errorf("the next call: %s, %v", got, err)
	}
}

// waitForSuccess waits until calls succeed again: the catalog may be updated a moment later than the extension.
func (h *host) waitForSuccess() {
	h.Helper()
	h.eventually("calls succeed again", func() bool {
		_, err := h.call("echo", "{}")
		return err == nil
	})
}

// within runs f, which takes at most limit on an idle machine.
func (h *host) within(limit time.Duration, what string, f func()) {
	h.Helper()
	began := time.Now()
	f()
	if took := time.Since(began); took > limit+busy {
		h.Errorf("%s took %s, over %s", what, took, limit)
	}
}

// wantError compares an error with the expected code, the expected value of ran, and parts of its text and data.
func (h *host) wantError(err error, code rpc.Code, ran rpc.Ran, texts ...string) rpc.Details {
	h.Helper()
	e, ok := errors.AsType[*rpc.Error](err)
	if !ok {
		h.Fatalf("the call ended with %v, want %v", err, code)
	}
	d := e.Details()
	if e.Code != code || d.Ran != ran {
		h.Errorf("the call failed with %d %s, ran %q: %s; want %d %s, ran %q", e.Code, d.Kind, d.Ran, e.Message, code, code, ran)
	}
	for _, text := range texts {
		if !strings.Contains(e.Message+string(e.Data), text) {
			h.Errorf("the error lacks %q: %s %s", text, e.Message, e.Data)
		}
	}
	return d
}

// request sends one plain NATS request to the extension and returns its result.
func (h *host) request(method, params string, header ...string) (json.RawMessage, error) {
	h.Helper()
	msg := nats.NewMsg("ext." + h.id + ".rpc")
	msg.Data = jsonrpc.AppendRequest(nil, []byte(`"e2e"`), method, []byte(params))
	for i := 0; i < len(header); i += 2 {
		msg.Header.Set(header[i], header[i+1])
	}
	m, err := h.w.nc.RequestMsg(msg, time.Minute)
	if err != nil {
		h.Fatalf("request %s: %v", method, err)
	}
	reply, err := jsonrpc.ParseReply(m.Data)
	if err != nil {
		h.Fatalf("the answer to %s, %.200s: %v", method, m.Data, err)
	}
	return reply.Result()
}

// control sends a control request to the bridge.
func (h *host) control(method, params string) json.RawMessage {
	h.Helper()
	m, err := h.w.nc.Request("ext.control."+h.id, jsonrpc.AppendRequest(nil, []byte("1"), method, []byte(params)), time.Minute)
	if err != nil {
		h.Fatalf("control %s: %v", method, err)
	}
	reply, err := jsonrpc.ParseReply(m.Data)
	if err != nil {
		h.Fatal(err)
	}
	result, err := reply.Result()
	if err != nil {
		h.Fatalf("control %s: %v", method, err)
	}
	return result
}

// restart does what extctl restart does.
func (h *host) restart() { h.Helper(); h.control("restart", fmt.Sprintf(`{"id":%q}`, h.id)) }

// status returns the bridge's status of the extension's first instance.
func (h *host) status() bridge.InstanceStatus {
	h.Helper()
	var s bridge.Status
	if err := json.Unmarshal(h.control("status", "{}"), &s); err != nil {
		h.Fatal(err)
	}
	i := slices.IndexFunc(s.Instances, func(i bridge.InstanceStatus) bool { return i.ID == h.id })
	if i < 0 {
		h.Fatalf("no %s in %+v", h.id, s)
	}
	return s.Instances[i]
}

// skipped returns the bridge's counters of discarded output.
func (h *host) skipped() bridge.Skipped {
	h.Helper()
	return *cmp.Or(h.status().Skipped, &bridge.Skipped{})
}

// signal sends the extension's process a signal.
func (h *host) signal(sig syscall.Signal) (pid int) {
	h.Helper()
	pid = h.status().PID
	if pid == 0 {
		h.Fatal("it has no process")
	}
	if err := syscall.Kill(pid, sig); err != nil {
		h.Fatal(err)
	}
	if sig == syscall.SIGSTOP { // a thread that is not stopped yet could still answer a call
		h.eventually("all its threads are stopped", func() bool { return stoppedIn(pid) })
	}
	return pid
}

// stoppedIn reports whether all threads of a process are stopped. It returns true on systems without /proc.
func stoppedIn(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/stat", pid))
	return !slices.ContainsFunc(stats, func(file string) bool {
		b, err := os.ReadFile(file)
		_, after, ok := strings.Cut(string(b), ") ")
		return err == nil && ok && !strings.ContainsAny(after[:1], "TZX") // Z, X: it has ended
	})
}

// processes lists the bridge's children and their descendants that run in this mode ("": any).
func (h *host) processes(mode string) (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil { // other systems than Linux are covered by the tests of internal/child
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err == nil && bytes.Contains(env, []byte(h.envMark)) && (mode == "" || bytes.Contains(env, []byte("E2E_MODE=child:"+mode+"\x00"))) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// usage counts resources of this process.
type usage struct{ goroutines, descriptors, zombies int }

func resources() (u usage) {
	u.goroutines = runtime.NumGoroutine()
	fds, _ := os.ReadDir("/proc/self/fd") // not on every system; then 0 is compared with 0
	u.descriptors = len(fds)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if _, after, ok := strings.Cut(string(b), ") "); err == nil && ok && strings.HasPrefix(after, fmt.Sprintf("Z %d ", os.Getpid())) {
			u.zombies++
		}
	}
	return u
}
