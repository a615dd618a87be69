package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// fastChild is an extension that starts within a millisecond or two: a shell script that starts no other program.
const fastChild = `#!/bin/sh
while IFS= read -r line; do
	id=${line#*'"id":'}
	id=${id%%,*}
	case $line in
	*'"initialize"'*) r='{"server_version":"1","tools":[{"name":"echo","input_schema":{"type":"object"}},{"name":"act","input_schema":{"type":"object"}}],"hooks":[]}' ;;
	*'"tools/act"'*) continue ;;
	*'"id"'*) r='{}' ;;
	*) continue ;;
	esac
	printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$r"
done
`

// measured runs fastChild with a bridge in a separate process, which, like stdio-bridge, adopts orphans and has a guard
// process. Every crash is restarted without backoff, like the first.
func (w *sharedMesh) measured(t *testing.T, id string, replicas int) *host {
	t.Helper()
	h := &host{T: t, w: w, id: id, dir: t.TempDir()}
	h.client = mesh.NewClient(w.nc, mesh.ClientOptions{Catalog: w.catalog})
	write(t, h.script(), fastChild)
	if err := os.Chmod(h.script(), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(h.dir, "ext", id, "plugin.toml"), fmt.Sprintf("[plugin]\nid = %q\nversion = \"1.0.0\"\n"+
		"[capabilities]\ntools = [\"echo\", \"act\"]\n[transport]\ntype = \"stdio\"\ncommand = \"./fast.sh\"\n", id))
	write(t, filepath.Join(h.dir, "extensions.yaml"), fmt.Sprintf(
		"extensions: {entries: {%s: {max_restarts: 1000, reset_after: 10ms, replicas: %d}}}\n", id, replicas))
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, []string{"E2E_MODE=bridge", "NATS_URL=" + w.url, "E2E_NAME=" + id, "E2E_DIR=" + h.dir}, exe)
	t.Cleanup(func() { p.stop(t, maxStop) })
	h.waitReady()
	h.eventually("all replicas are ready", func() bool { return h.readyInstances() == replicas })
	return h
}

func (h *host) script() string { return filepath.Join(h.dir, "ext", h.id, "fast.sh") }

// startUp measures the time from the start of the child to its answer to initialize, without a bridge.
func startUp(t *testing.T, script string) time.Duration {
	t.Helper()
	var all []time.Duration
	for range 20 {
		began := time.Now()
		cmd := exec.Command(script)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`+"\n")
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		all = append(all, time.Since(began))
		in.Close()
		cmd.Wait()
	}
	return median(all)
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/1e6) }

// TestRecovery measures the effects of kill -9 for docs/operations.md. The slow tests compare with limits that are ten times the
// target, because the machine may be busy.
func TestRecovery(t *testing.T) {
	n := 50
	if !slowTests() {
		t.Parallel() // the times are not compared with limits
		n = 10
	}
	w := newSharedMesh(t)
	t.Run("one replica", func(t *testing.T) {
		h := w.measured(t, "measured", 1)
		own := startUp(t, h.script())
		var failed, polled, gaps []time.Duration
		lost := 0
		for range n {
			f, next := h.crash(20)
			failed = append(failed, f...)
			polled = append(polled, next)
			gap, n := h.gap()
			gaps, lost = append(gaps, gap), lost+n
		}
		t.Logf("the child's own start-up: %s", ms(own))
		t.Logf("calls in flight failed after: median %s, longest %s", ms(median(failed)), ms(failed[len(failed)-1]))
		t.Logf("next good call after: median %s, longest %s", ms(median(polled)), ms(polled[len(polled)-1]))
		t.Logf("gap for an agent that calls without a pause: median %s, longest %s; %d errors in %d crashes", ms(median(gaps)), ms(gaps[len(gaps)-1]), lost, n)
		if !slowTests() || raceEnabled {
			return
		}
		if m := median(failed); m > 100*time.Millisecond {
			t.Errorf("calls in flight failed only after %s", m)
		}
		if m := median(polled); m > own+200*time.Millisecond {
			t.Errorf("the next good call came only after %s", m)
		}
	})
	t.Run("two replicas", func(t *testing.T) {
		h := w.measured(t, "measured-twice", 2)
		var gaps []time.Duration
		lost := 0
		for range n {
			gap, n := h.gap()
			gaps, lost = append(gaps, gap), lost+n
			h.eventually("both are ready again", func() bool { return h.readyInstances() == 2 })
		}
		t.Logf("gap with two replicas: median %s, longest %s; %d errors in %d crashes", ms(median(gaps)), ms(gaps[len(gaps)-1]), lost, n)
		if m := median(gaps); m > 100*time.Millisecond && slowTests() && !raceEnabled {
			t.Errorf("with two replicas there was a gap of %s", m)
		}
	})
}

// settled waits for a process other than the one killed last, and until it has run for longer than reset_after.
func (h *host) settled() (pid int) {
	h.Helper()
	h.eventually("it is ready", func() bool {
		s := h.status()
		pid = s.PID
		return s.State == heartbeat.Ready && pid != 0 && pid != h.killed
	})
	sleep(h.Context(), 30*time.Millisecond)
	h.killed = pid
	return pid
}

// crash kills the child with n calls in flight. It returns the times from the kill until each of them failed, and until a
// call succeeded again; a call is tried every millisecond.
func (h *host) crash(n int) (failed []time.Duration, next time.Duration) {
	h.Helper()
	pid := h.settled()
	inbox := h.w.nc.NewInbox()
	replies := make(chan time.Time, n)
	sub, err := h.w.nc.Subscribe(inbox, func(*nats.Msg) { replies <- time.Now() })
	if err != nil {
		h.Fatal(err)
	}
	defer sub.Unsubscribe()
	subject, body := "ext."+h.id+".rpc", jsonrpc.AppendRequest(nil, []byte("1"), "tools/act", []byte("{}"))
	for range n {
		if err := h.w.nc.PublishRequest(subject, inbox, body); err != nil {
			h.Fatal(err)
		}
	}
	if _, err := h.request("tools/echo", "{}"); err != nil { // is delivered after them, because it uses the same connection
		h.Error(err)
	}
	killed := time.Now()
	syscall.Kill(pid, syscall.SIGKILL)
	for echo := jsonrpc.AppendRequest(nil, []byte("1"), "tools/echo", []byte("{}")); ; sleep(h.Context(), time.Millisecond) {
		m, err := h.w.nc.Request(subject, echo, time.Second)
		if err != nil {
			continue // no responders
		}
		if r, err := jsonrpc.ParseReply(m.Data); err == nil && r.ErrorCode() == 0 {
			break
		}
	}
	next = time.Since(killed)
	for range n {
		failed = append(failed, (<-replies).Sub(killed))
	}
	return failed, next
}

// gap kills the child, or one of its replicas, while a client makes calls without a pause. It returns the longest time
// between two answers, and the number of failed calls.
func (h *host) gap() (longest time.Duration, lost int) {
	h.Helper()
	ctx, stop := context.WithCancel(h.Context())
	var wg sync.WaitGroup
	wg.Go(func() { // ends with ctx
		last := time.Now()
		for ctx.Err() == nil {
			if _, err := h.client.Call(context.WithoutCancel(ctx), h.id+"/echo", nil); err == nil {
				now := time.Now()
				longest = max(longest, now.Sub(last))
				last = now
			} else {
				lost++
			}
		}
	})
	syscall.Kill(h.settled(), syscall.SIGKILL)
	sleep(ctx, 100*time.Millisecond)
	stop()
	wg.Wait()
	return longest, lost
}
