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
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// entry is what the catalog says of the extension.
func (h *host) entry() mesh.Extension {
	e, _ := h.w.catalog.Get(h.id)
	return e
}

// becomes waits until the catalog shows the extension in this state, with reasons that hold all of texts.
func (h *host) becomes(state heartbeat.State, texts ...string) mesh.Extension {
	h.Helper()
	var e mesh.Extension
	for deadline := time.Now().Add(time.Minute); ; nap(h.Context(), 2*time.Millisecond) {
		e = h.entry()
		if e.State != nil && e.State.State == state && !slices.ContainsFunc(texts, func(text string) bool {
			return !strings.Contains(e.State.Reason, text)
		}) {
			return e
		}
		if time.Now().After(deadline) {
			h.Fatalf("the extension does not become %s, %q; it is %+v", state, texts, e.State)
		}
	}
}

// ready waits until the extension is, with its tools in the catalog.
func (h *host) ready() mesh.Extension {
	h.Helper()
	h.becomes(heartbeat.Ready)
	var e mesh.Extension
	h.eventually("its tools are in the catalog", func() bool {
		e = h.entry()
		return e.Spec != nil && len(e.Spec.Tools) > 0
	})
	return e
}

// restarts waits until the catalog counts this many, and the extension is ready again.
func (h *host) restarts(n uint64) {
	h.Helper()
	h.eventually(fmt.Sprintf("the catalog counts %d restarts", n), func() bool {
		e := h.entry()
		return e.State != nil && e.State.State == heartbeat.Ready && len(e.State.Instances) == 1 && e.State.Instances[0].Restarts == n
	})
}

// call calls a tool of the extension as an agent would, within 15 s.
func (h *host) call(tool, args string) (string, error) {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), 15*time.Second)
	defer cancel()
	got, err := h.client.Call(ctx, h.id+"/"+tool, json.RawMessage(args))
	return string(got), err
}

// good makes a call that must succeed.
func (h *host) good() {
	h.Helper()
	const args = `{"is":"well"}`
	if got, err := h.call("echo", args); err != nil || got != args {
		h.Errorf("the next call: %s, %v", got, err)
	}
}

// recovers waits until calls succeed again: the catalog may take a moment to say so.
func (h *host) recovers() {
	h.Helper()
	h.eventually("calls succeed again", func() bool {
		_, err := h.call("echo", "{}")
		return err == nil
	})
}

// within does f and says if it took longer than it may, on a machine that has other things to do as well.
func (h *host) within(limit time.Duration, what string, f func()) {
	h.Helper()
	began := time.Now()
	f()
	if took := time.Since(began); took > limit && !raceEnabled {
		h.tooSlow("%s took %s, over %s", what, took, limit)
	}
}

// fails holds an error to its code, whether the tool may have run, and parts of its text and data.
func (h *host) fails(err error, code rpc.Code, ran rpc.Ran, texts ...string) rpc.Details {
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
			h.Errorf("the error does not say %q: %s %s", text, e.Message, e.Data)
		}
	}
	return d
}

// ask sends one request as it is and returns the one reply, as any NATS client would get it.
func (h *host) ask(method, params string, header ...string) (json.RawMessage, error) {
	h.Helper()
	msg := nats.NewMsg("ext." + h.id + ".rpc")
	msg.Data = rpc.AppendRequest(nil, []byte(`"e2e"`), method, []byte(params))
	for i := 0; i < len(header); i += 2 {
		msg.Header.Set(header[i], header[i+1])
	}
	m, err := h.w.nc.RequestMsg(msg, time.Minute)
	if err != nil {
		h.Fatalf("asking %s: %v", method, err)
	}
	reply, err := rpc.ParseReply(m.Data)
	if err != nil {
		h.Fatalf("the answer to %s, %.200s: %v", method, m.Data, err)
	}
	return reply.Result()
}

// control asks the bridge.
func (h *host) control(method, params string) json.RawMessage {
	h.Helper()
	m, err := h.w.nc.Request("ext.control."+h.id, rpc.AppendRequest(nil, []byte("1"), method, []byte(params)), time.Minute)
	if err != nil {
		h.Fatalf("control %s: %v", method, err)
	}
	reply, err := rpc.ParseReply(m.Data)
	if err != nil {
		h.Fatal(err)
	}
	result, err := reply.Result()
	if err != nil {
		h.Fatalf("control %s: %v", method, err)
	}
	return result
}

// restart is extctl restart.
func (h *host) restart() { h.Helper(); h.control("restart", fmt.Sprintf(`{"id":%q}`, h.id)) }

// status is what the bridge says of the extension's first instance.
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

// skipped is what the bridge has counted.
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
	if sig == syscall.SIGSTOP { // it may be late for one of its threads, which would answer a call yet
		h.eventually("all its threads are stopped", func() bool { return stoppedIn(pid) })
	}
	return pid
}

// stoppedIn reports whether each thread of a process is stopped; where there is no /proc nobody can tell.
func stoppedIn(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/stat", pid))
	return !slices.ContainsFunc(stats, func(file string) bool {
		b, err := os.ReadFile(file)
		_, after, ok := strings.Cut(string(b), ") ")
		return err == nil && ok && !strings.ContainsAny(after[:1], "TZX") // Z, X: it was ended meanwhile
	})
}

// processes lists what the bridge has started and what came of it, as far as it runs in this mode ("": any).
func (h *host) processes(mode string) (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil { // not on Linux: the tests of internal/child have other means
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err == nil && bytes.Contains(env, []byte(h.mark)) && (mode == "" || bytes.Contains(env, []byte("E2E_MODE=child:"+mode+"\x00"))) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// slowTests reports whether slow tests are asked for.
func slowTests() bool { return os.Getenv("EXTMESH_SLOW") != "" }

// usage is what this process holds.
type usage struct{ goroutines, descriptors, zombies int }

func resources() (u usage) {
	u.goroutines = runtime.NumGoroutine()
	fds, _ := os.ReadDir("/proc/self/fd") // elsewhere there is none, and nothing is compared
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
