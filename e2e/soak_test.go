package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// soaked is the extension of TestSoak: a container with six MCP servers that have tools to make them misbehave.
var soaked = fault{
	mode:     "soaked",
	manifest: soakedManifest("one", "two", "three", "four", "five", "six"),
	mcp:      true,
	tools:    []string{"crash", "hang", "flood", "noise", "large", "daemon", "storm", "wait", "closes"},
	child: func(k *testChild) {
		k.serve(map[string]func(message){
			"crash": func(message) { killSelf() },
			"hang":  func(message) { hang() },
			"flood": func(m message) {
				io.WriteString(os.Stderr, strings.Repeat("a line of a flood\n", 20_000))
				k.result(m, "true")
			},
			"noise":  func(m message) { k.write(strings.Repeat("noise on stdout\n", 5_000)); k.result(m, "true") },
			"large":  func(m message) { k.result(m, `"`+strings.Repeat(megabyte, 3)+`"`) },
			"daemon": func(m message) { spawn("forks", true); k.result(m, "true") },
			"storm": func(m message) {
				k.write(strings.Repeat(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`+"\n", 200))
				k.result(m, "true")
			},
			"wait":   func(m message) { go func() { pause(200 * time.Millisecond); k.result(m, "true") }() }, // ends with its answer
			"closes": func(message) { os.Stdout.Close(); hang() },
		})
	},
	set: func(s *config.Supervision) {
		s.CallTimeout, s.HangTimeout, s.HandshakeTimeout = 500*time.Millisecond, 500*time.Millisecond, 5*time.Second
		s.MaxRestarts, s.ShutdownGrace = 1<<30, 500*time.Millisecond
	},
}

func soakedManifest(servers ...string) string {
	var b strings.Builder
	for _, name := range servers {
		fmt.Fprintf(&b, "[mcp_servers.%s]\ntype = \"stdio\"\ncommand = \"$EXE\"\nenv = { E2E_MODE = \"child:soaked\" }\n", name)
	}
	return b.String()
}

// TestSoak kills, stops, floods, hangs and restarts six extensions at random, for the time EXTMESH_SOAK (default 60 s).
// Meanwhile a healthy extension is called 100 times a second, and no call may be lost. EXTMESH_SEED repeats a run.
func TestSoak(t *testing.T) {
	nightlyOnly(t, "it takes a minute")
	length := time.Minute
	if s := os.Getenv("EXTMESH_SOAK"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("EXTMESH_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("EXTMESH_SEED=%d EXTMESH_SOAK=%s", seed, length)
	w := newSharedMesh(t)
	h := w.host(t, soaked)
	s := &soak{host: h, did: map[string]int{}}
	for _, server := range []string{"one", "two", "three", "four", "five", "six"} {
		s.members = append(s.members, h.member(server))
	}
	before := resources()
	ctx, stop := context.WithTimeout(context.Background(), length)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { s.steady(ctx) }) // ends with ctx
	for n := range s.members {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		wg.Go(func() { s.disturb(ctx, s.members[n], r) }) // ends with ctx
	}
	wg.Wait()

	slices.Sort(s.took)
	t.Logf("healthy extension: %d calls, %d lost; median %s, p99 %s, longest %s", len(s.took), s.lost.Load(), ms(s.took[len(s.took)/2]),
		ms(s.took[len(s.took)*99/100]), ms(s.took[len(s.took)-1]))
	t.Logf("disturbances: %v; calls to the disturbed members: %d answered, %d failed", s.did, s.good.Load(), s.failed.Load())
	if want := int(length.Seconds() * 80); len(s.took) < want {
		t.Errorf("the healthy extension was called only %d times, want %d", len(s.took), want)
	}
	for _, m := range s.members {
		m.restartMember()
		m.waitForSuccess()
	}
	h.eventually(fmt.Sprintf("nothing has grown over %v", before), func() bool {
		now := resources()
		return now.goroutines <= before.goroutines+20 && now.descriptors <= before.descriptors+10 && now.zombies == 0
	})
}

// soak is the state of TestSoak.
type soak struct {
	*host
	members []*host

	lost, good, failed atomic.Int64

	mu   sync.Mutex
	took []time.Duration // by calls to the healthy extension
	did  map[string]int
}

// steady calls the healthy extension 100 times a second, each call in its own goroutine.
func (s *soak) steady(ctx context.Context) {
	client := mesh.NewClient(s.w.connect(s.T), mesh.ClientOptions{Catalog: s.w.catalog})
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	for began, n := time.Now(), 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// Calls that the ticker missed on a busy machine are made now.
		for due := int(time.Since(began) / (10 * time.Millisecond)); n < due; n++ {
			call := n
			calls.Go(func() { s.callHealthyOnce(context.WithoutCancel(ctx), client, call) }) // ends with its call
		}
	}
}

// callHealthyOnce makes one of the steady calls, which must be answered.
func (s *soak) callHealthyOnce(ctx context.Context, client *mesh.Client, n int) {
	args := fmt.Sprintf(`{"n":%d}`, n)
	began := time.Now()
	got, err := client.Call(ctx, s.healthy+"/echo", json.RawMessage(args))
	took := time.Since(began)
	s.mu.Lock()
	s.took = append(s.took, took)
	s.mu.Unlock()
	if err != nil || string(got) != args {
		s.lost.Add(1)
		s.Errorf("the healthy extension answered %s with %s after %s, %v", args, got, took, err)
	}
}

// disturb disturbs a member in one random way after another.
func (s *soak) disturb(ctx context.Context, m *host, r *rand.Rand) {
	things := []struct {
		name string
		do   func()
	}{
		{"kill", func() { m.signalIfRunning(syscall.SIGKILL) }},
		{"term", func() { m.signalIfRunning(syscall.SIGTERM) }},
		{"stop", func() { m.signalIfRunning(syscall.SIGSTOP) }},
		{"stop and continue", func() {
			m.signalIfRunning(syscall.SIGSTOP)
			sleep(ctx, time.Duration(r.IntN(300))*time.Millisecond)
			m.signalIfRunning(syscall.SIGCONT)
		}},
		{"restart", m.restartMember},
		{"calls", func() {
			var wg sync.WaitGroup
			for range 1 + r.IntN(50) {
				wg.Go(func() { s.callDisturbed(ctx, m, "wait") })
			}
			wg.Wait()
		}},
	}
	for _, tool := range soaked.tools {
		things = append(things, struct {
			name string
			do   func()
		}{tool, func() { s.callDisturbed(ctx, m, tool) }})
	}
	for ctx.Err() == nil {
		thing := things[r.IntN(len(things))]
		s.mu.Lock()
		s.did[thing.name]++
		s.mu.Unlock()
		thing.do()
		for range r.IntN(10) {
			s.callDisturbed(ctx, m, "echo")
		}
		sleep(ctx, time.Duration(r.IntN(300))*time.Millisecond)
	}
}

// callDisturbed calls a tool of a member. The call may fail in the expected ways, but must not hang.
func (s *soak) callDisturbed(ctx context.Context, m *host, tool string) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, err := m.client.Call(ctx, m.id+"/"+tool, nil)
	if took := time.Since(began); took > limitFor(5*time.Second) {
		s.Errorf("%s of %s took %s: %v", tool, m.id, took, err)
	}
	if err == nil {
		s.good.Add(1)
		return
	}
	s.failed.Add(1)
	switch e := rpc.AsError(err); e.Code {
	case rpc.CodeExited, rpc.CodeTimeout, rpc.CodeUnavailable, rpc.CodeBreakerOpen:
	default:
		s.Errorf("%s of %s failed in an unexpected way: %d %v", tool, m.id, e.Code, err)
	}
}

// signalIfRunning sends a signal to the member's process, if there is one.
func (h *host) signalIfRunning(sig syscall.Signal) {
	parent, _, _ := strings.Cut(h.id, ".")
	m, err := h.w.nc.Request("ext.control."+parent, []byte(`{"jsonrpc":"2.0","id":1,"method":"status"}`), 20*time.Second)
	if err != nil {
		h.Error(err)
		return
	}
	var s struct {
		Result struct {
			Instances []struct {
				ID  string
				PID int
			}
		}
	}
	if err := json.Unmarshal(m.Data, &s); err != nil {
		h.Error(err)
		return
	}
	for _, i := range s.Result.Instances {
		if i.ID == h.id && i.PID > 0 {
			syscall.Kill(i.PID, sig) // the process may have ended meanwhile
		}
	}
}

// restartMember does what extctl restart does, for one member.
func (h *host) restartMember() {
	parent, _, _ := strings.Cut(h.id, ".")
	body := jsonrpc.AppendRequest(nil, []byte("1"), "restart", fmt.Appendf(nil, `{"id":%q}`, h.id))
	if _, err := h.w.nc.Request("ext.control."+parent, body, 20*time.Second); err != nil {
		h.Errorf("restarting %s: %v", h.id, err)
	}
}
