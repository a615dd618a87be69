package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/mesh"
)

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
	again  func()                      // has the row tried again, for it was too slow; nil: it fails
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
	at  []time.Time // when each came
}

func (s *saidEvents) take(m *nats.Msg) {
	var e message
	if json.Unmarshal(m.Data, &e) == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all, s.at = append(s.all, e), append(s.at, time.Now())
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

// saidAt is when the extension sent its first notification of a method; zero: it has not.
func (h *host) saidAt(method string) time.Time {
	h.said.mu.Lock()
	defer h.said.mu.Unlock()
	for i, e := range h.said.all {
		if e.Method == method {
			return h.said.at[i]
		}
	}
	return time.Time{}
}

// secretOfTheHost is FAULT_TOKEN here, for extensions that ask for it by name.
const secretOfTheHost = "correct-horse-battery-staple"

// fileKey is what is in the file key of every extension.
const fileKey = "a-key-in-a-file"

// maxStop is how long a stop may take, whatever the extensions do.
const maxStop = 5 * time.Second

// host runs a bridge over the fault's extension and a neighbour, until the test's end, and holds both to what is
// true of every fault.
func (w *world) host(t *testing.T, f fault) *host {
	t.Helper()
	h := &host{T: t, w: w, id: f.mode, beside: "beside-" + f.mode, dir: t.TempDir(), mark: "E2E_HOST=" + unique(), nc: w.connect(t)}
	// Its next life may take a child a while on a machine that has other things to do.
	h.client = mesh.NewClient(w.nc, mesh.ClientOptions{Catalog: w.catalog, WaitReady: 10 * time.Second})
	h.web.run(t, f.web)
	h.write(f)
	if _, err := w.nc.Subscribe("ext."+h.id+".event", h.said.take); err != nil {
		t.Fatal(err)
	}
	if err := w.nc.Flush(); err != nil { // the bridge has a connection of its own
		t.Fatal(err)
	}
	settings := config.Default()
	settings.SearchPaths = []string{filepath.Join(h.dir, "ext")}
	settings.Watch.Enabled = false
	settings.Supervision.HandshakeTimeout = time.Minute
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
			h.tooSlow("the bridge took %s to stop", took)
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
	write(h, filepath.Join(h.dir, "ext", h.id, "key"), fileKey+"\n")
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
			h.tooSlow("of %d calls to the neighbour one took %s, the median %s", len(took), most, median)
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
	eventually(h, time.Minute, what, cond)
}
