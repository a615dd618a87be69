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

// host is a bridge with one extension that misbehaves and another that does not.
type host struct {
	*testing.T
	w         *sharedMesh
	id        string // of the extension
	healthy   string // id of the other extension
	dir       string
	envMark   string // in the environment of everything the bridge starts
	nc        *nats.Conn
	client    *mesh.Client
	log       lockedBuffer
	received  eventLog
	web       webServer
	killed    int                         // the process that the test killed last
	stopCalls func()                      // ends the calls to the healthy extension
	stop      func() (took time.Duration) // stops the bridge
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

// eventLog records the notifications on the extension's event subject.
type eventLog struct {
	mu  sync.Mutex
	all []message
	at  []time.Time // when each was received
}

func (s *eventLog) add(m *nats.Msg) {
	var e message
	if json.Unmarshal(m.Data, &e) == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all, s.at = append(s.all, e), append(s.at, time.Now())
	}
}

// events counts the notifications with this method.
func (h *host) events(method string) (n int) {
	h.received.mu.Lock()
	defer h.received.mu.Unlock()
	for _, e := range h.received.all {
		if e.Method == method {
			n++
		}
	}
	return n
}

// receivedAt returns when the first notification with this method was received; zero if there was none.
func (h *host) receivedAt(method string) time.Time {
	h.received.mu.Lock()
	defer h.received.mu.Unlock()
	for i, e := range h.received.all {
		if e.Method == method {
			return h.received.at[i]
		}
	}
	return time.Time{}
}

// hostSecret is the value of FAULT_TOKEN in the host's environment, which some manifests require.
const hostSecret = "correct-horse-battery-staple"

// fileKey is the content of the file "key" in the directory of every extension.
const fileKey = "a-key-in-a-file"

// maxStop is how long a bridge may take to stop, whatever its extensions do.
const maxStop = 5 * time.Second

// host runs a bridge with the fault's extension and a healthy one until the end of the test, and checks what must be true
// in every row.
func (w *sharedMesh) host(t *testing.T, f fault) *host {
	t.Helper()
	h := &host{T: t, w: w, id: f.mode, healthy: "healthy-" + f.mode, dir: t.TempDir(), envMark: "E2E_HOST=" + unique(), nc: w.connect(t)}
	// On a busy machine a restart may take a while.
	h.client = mesh.NewClient(w.nc, mesh.ClientOptions{Catalog: w.catalog, WaitReady: 10 * time.Second})
	h.web.run(t, f.web)
	h.write(f)
	if _, err := w.nc.Subscribe("ext."+h.id+".event", h.received.add); err != nil {
		t.Fatal(err)
	}
	if err := w.nc.Flush(); err != nil { // the bridge uses another connection
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
		Environ: append(os.Environ(), h.envMark),
		Logger:  slog.New(slog.NewTextHandler(&h.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }() // ends with ctx
	h.stopCalls = func() {}
	h.stop = sync.OnceValue(func() time.Duration {
		h.stopCalls()
		began := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the bridge: %v", err)
		}
		return time.Since(began)
	})
	t.Cleanup(func() {
		if took := h.stop(); took > maxStop+busy {
			h.Errorf("the bridge took %s to stop", took)
		}
		if left := h.processes(""); len(left) > 0 {
			t.Errorf("these processes remain after the bridge: %v", left)
		}
		if t.Failed() {
			t.Logf("log of the bridge:\n%s", h.log.String())
		}
	})
	h.callHealthy()
	return h
}

// healthyChild is the extension next to each fault. As a shell script it starts ten times as fast as this binary.
const healthyChild = `while IFS= read -r line; do
	case $line in
	*'"initialize"'*) r='{"server_version":"1","tools":[{"name":"echo","input_schema":{"type":"object"}}],"hooks":[]}' ;;
	*'"tools/echo"'*) r=${line#*'"params":'} r=${r%\}} ;;
	*'"id":'*) r='{}' ;;
	*) continue ;;
	esac
	id=${line#*'"id":'}
	printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "${id%%[,\}]*}" "$r"
done
`

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
	write(h, filepath.Join(h.dir, "ext", h.healthy, "healthy.sh"), healthyChild)
	plugin(h.healthy, "[capabilities]\ntools = [\"echo\"]\n[transport]\ntype = \"stdio\"\ncommand = \"sh\"\nargs = [\"healthy.sh\"]\n")
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

// callHealthy calls the healthy extension during the whole test. No call may fail or take long.
func (h *host) callHealthy() {
	h.Helper()
	client := mesh.NewClient(h.w.nc, mesh.ClientOptions{})
	h.eventually("the healthy extension is ready", func() bool {
		_, err := client.CallExt(h.Context(), h.healthy, "tools/echo", json.RawMessage(`{}`))
		return err == nil
	})
	ctx, stop := context.WithCancel(context.Background())
	var took []time.Duration
	var wg sync.WaitGroup
	wg.Go(func() { // ends with ctx
		for n := 0; ctx.Err() == nil; n++ {
			args := fmt.Sprintf(`{"n":%d}`, n)
			began := time.Now()
			got, err := client.CallExt(context.WithoutCancel(ctx), h.healthy, "tools/echo", json.RawMessage(args))
			took = append(took, time.Since(began))
			if err != nil || string(got) != args {
				h.Errorf("the healthy extension answered %s with %s, %v", args, got, err)
			}
			sleep(ctx, 50*time.Millisecond)
		}
	})
	h.stopCalls = sync.OnceFunc(func() {
		stop()
		wg.Wait()
		if slices.Sort(took); len(took) == 0 {
			return
		}
		median, most := took[len(took)/2], took[len(took)-1]
		if limit := time.Second; most > limit+busy {
			h.Errorf("of %d calls to the healthy extension one took %s, the median %s", len(took), most, median)
		}
	})
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
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
