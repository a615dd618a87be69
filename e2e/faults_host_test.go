package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// world is what hosts share: a NATS server, a registry, and somebody who follows the catalog.
type world struct {
	url     string
	nc      *nats.Conn
	catalog *mesh.Catalog
}

func newWorld(t testing.TB) *world {
	t.Helper()
	t.Setenv("FAULT_TOKEN", secretOfTheHost)
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	if !ns.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not come up")
	}
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	w := &world{url: ns.ClientURL()}
	w.nc = w.connect(t)
	regNC, followNC := w.connect(t), w.connect(t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	reg := registry.New(regNC, registry.Config{Version: "1.0.0", LeaseTTL: 10 * time.Second})
	wg.Go(func() { // ends with ctx
		if err := reg.Run(ctx); err != nil {
			t.Errorf("registry: %v", err)
		}
	})
	w.catalog = mesh.NewCatalog(followNC, mesh.CatalogOptions{})
	wg.Go(func() { w.catalog.Run(ctx) }) // ends with ctx
	return w
}

func (w *world) connect(t testing.TB) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(w.url, nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// host is a bridge with one extension that misbehaves and a neighbour that does not.
type host struct {
	*testing.T
	w      *world
	id     string // of the extension
	beside string // of the neighbour
	dir    string
	mark   string // in the environment of everything the bridge starts
	nc     *nats.Conn
	client *mesh.Client
	log    lockedBuffer
	said   saidEvents
	web    webServer
	killed int                         // the process that was killed last, where a test counts
	quiet  func()                      // ends the calls to the neighbour
	stop   func() (took time.Duration) // stops the bridge
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// saidEvents are the notifications that the extension has sent on its event subject.
type saidEvents struct {
	mu  sync.Mutex
	all []message
}

func (s *saidEvents) take(m *nats.Msg) {
	var e message
	if json.Unmarshal(m.Data, &e) == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, e)
	}
}

// events counts those of a method.
func (h *host) events(method string) (n int) {
	h.said.mu.Lock()
	defer h.said.mu.Unlock()
	for _, e := range h.said.all {
		if e.Method == method {
			n++
		}
	}
	return n
}

// secretOfTheHost is FAULT_TOKEN here, for extensions that ask for it by name.
const secretOfTheHost = "correct-horse-battery-staple"

// maxStop is how long a stop may take, whatever the extensions do.
const maxStop = 5 * time.Second

// host runs a bridge over the fault's extension and a neighbour, until the test's end, and holds both to what is
// true of every fault.
func (w *world) host(t *testing.T, f fault) *host {
	t.Helper()
	h := &host{T: t, w: w, id: f.mode, beside: "beside-" + f.mode, dir: t.TempDir(), mark: "E2E_HOST=" + unique(), nc: w.connect(t)}
	h.client = mesh.NewClient(w.nc, mesh.ClientOptions{Catalog: w.catalog})
	h.web.run(t, f.web)
	h.write(f)
	if _, err := w.nc.Subscribe("ext."+h.id+".event", h.said.take); err != nil {
		t.Fatal(err)
	}
	settings := config.Default()
	settings.SearchPaths = []string{filepath.Join(h.dir, "ext")}
	settings.Watch.Enabled = false
	quick := settings.Supervision
	quick.BaseBackoff, quick.MaxBackoff = 10*time.Millisecond, 50*time.Millisecond
	quick.HangTimeout = quick.CallTimeout
	if f.set != nil {
		f.set(&quick)
	}
	settings.Entries = map[string]config.Entry{h.id: {Supervision: quick, Gating: config.Skip}}
	b := bridge.New(h.nc, bridge.Config{
		Name: f.mode, Host: "e2e", Version: "1.0.0", Settings: settings, StateDir: filepath.Join(h.dir, "state"),
		Environ: append(os.Environ(), h.mark),
		Logger:  slog.New(slog.NewTextHandler(&h.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }() // ends with ctx
	h.quiet = func() {}
	h.stop = sync.OnceValue(func() time.Duration {
		h.quiet()
		began := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the bridge: %v", err)
		}
		return time.Since(began)
	})
	t.Cleanup(func() {
		if took := h.stop(); took > maxStop+2*time.Second && !raceEnabled { // TestStop measures it with nothing beside
			t.Errorf("the bridge took %s to stop", took)
		}
		if left := h.processes(""); len(left) > 0 {
			t.Errorf("the bridge left processes behind: %v", left)
		}
		if t.Failed() {
			t.Logf("log of the bridge:\n%s", h.log.String())
		}
	})
	h.watchNeighbour()
	return h
}

// write writes the manifests.
func (h *host) write(f fault) {
	exe, err := os.Executable()
	if err != nil {
		h.Fatal(err)
	}
	plugin := func(id, rest string) {
		write(h, filepath.Join(h.dir, "ext", id, "plugin.toml"), fmt.Sprintf("[plugin]\nid = %q\nversion = \"1.0.0\"\n%s", id, rest))
	}
	child := func(mode, dialect string, tools []string) string {
		list, err := json.Marshal(tools)
		if err != nil {
			h.Fatal(err)
		}
		return fmt.Sprintf("[capabilities]\ntools = %s\n[transport]\ntype = \"stdio\"\ncommand = %q\ndialect = %q\nenv = { E2E_MODE = %q }\n",
			list, exe, dialect, "child:"+mode)
	}
	plugin(h.beside, child("neighbour", "auto", []string{"echo"}))
	dialect := "auto"
	if f.mcp {
		dialect = "mcp"
	}
	own := f.manifest
	if own == "" {
		own = child(f.mode, dialect, append([]string{"echo"}, f.tools...)) + f.more
	}
	plugin(h.id, strings.NewReplacer("$EXE", exe, "$URL", h.web.url).Replace(own))
}

// watchNeighbour calls the neighbour all the while. None of its calls may fail, or take long.
func (h *host) watchNeighbour() {
	h.Helper()
	client := mesh.NewClient(h.w.nc, mesh.ClientOptions{})
	h.eventually("the neighbour is up", func() bool {
		_, err := client.CallExt(h.Context(), h.beside, "tools/echo", json.RawMessage(`{}`))
		return err == nil
	})
	ctx, stop := context.WithCancel(context.Background())
	var took []time.Duration
	var wg sync.WaitGroup
	wg.Go(func() { // ends with ctx
		for n := 0; ctx.Err() == nil; n++ {
			args := fmt.Sprintf(`{"n":%d}`, n)
			began := time.Now()
			got, err := client.CallExt(context.WithoutCancel(ctx), h.beside, "tools/echo", json.RawMessage(args))
			took = append(took, time.Since(began))
			if err != nil || string(got) != args {
				h.Errorf("the neighbour, asked %s, answered %s, %v", args, got, err)
			}
			nap(ctx, 10*time.Millisecond)
		}
	})
	h.quiet = sync.OnceFunc(func() {
		stop()
		wg.Wait()
		if slices.Sort(took); len(took) == 0 {
			return
		}
		median, most := took[len(took)/2], took[len(took)-1]
		if limit := time.Second; most > limit && !raceEnabled {
			h.Errorf("of %d calls to the neighbour one took %s, the median %s", len(took), most, median)
		}
	})
}

// nap waits for d or the end of ctx.
func nap(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func unique() string { return strconv.FormatInt(time.Now().UnixNano(), 36) + strconv.Itoa(os.Getpid()) }

func (h *host) eventually(what string, cond func() bool) {
	h.Helper()
	eventually(h, 20*time.Second, what, cond)
}

// entry is what the catalog says of the extension.
func (h *host) entry() mesh.Extension {
	e, _ := h.w.catalog.Get(h.id)
	return e
}

// becomes waits until the catalog shows the extension in this state, with reasons that hold all of texts.
func (h *host) becomes(state heartbeat.State, texts ...string) mesh.Extension {
	h.Helper()
	var e mesh.Extension
	for deadline := time.Now().Add(20 * time.Second); ; nap(h.Context(), 2*time.Millisecond) {
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
		h.Errorf("%s took %s, over %s", what, took, limit)
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
	m, err := h.w.nc.RequestMsg(msg, 15*time.Second)
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
	m, err := h.w.nc.Request("ext.control."+h.id, rpc.AppendRequest(nil, []byte("1"), method, []byte(params)), 5*time.Second)
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
	return pid
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
