package bridge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/pkg/mesh"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "6") // most of their time the tests wait; the command line overrides it
	os.Exit(m.Run())
}

// host is a directory of extensions with a bridge that runs them, on an in-process NATS server.
type host struct {
	t   *testing.T
	dir string
	srv *natstest.Server
	nc  *nats.Conn
	log lockedBuffer
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

func newHost(t *testing.T, change ...func(*server.Options)) *host {
	t.Helper()
	o := &server.Options{}
	for _, c := range change {
		c(o)
	}
	s := natstest.Start(t, o)
	return &host{t: t, dir: t.TempDir(), srv: s, nc: s.Connect()}
}

// extension writes an extension, which is a shell script. answer is its result of tools/say.
func (h *host) extension(id, answer, more string) {
	h.t.Helper()
	dir := filepath.Join(h.dir, "ext", id)
	script := `#!/bin/sh
while IFS= read -r line; do
	id=
	case $line in
	*'"id":'*) id=${line#*'"id":'} id=${id%%,*} ;;
	esac
	case $line in
	*'"initialize"'*) r='{"server_version":"1","tools":[{"name":"say","input_schema":{"type":"object"}}],"hooks":[]}' ;;
	*'"tools/say"'*) r='` + answer + `' ;;
	*) r='{}' ;;
	esac
	[ -n "$id" ] && printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$r"
done
`
	manifest := fmt.Sprintf("[plugin]\nid = %q\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"say\"]\n[transport]\ntype = \"stdio\"\ncommand = \"./say.sh\"\n%s", id, more)
	h.write(filepath.Join(dir, "say.sh"), script, 0o755)
	h.write(filepath.Join(dir, "plugin.toml"), manifest, 0o644)
}

func (h *host) write(path, text string, mode os.FileMode) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		h.t.Fatal(err)
	}
}

// run runs the bridge until the end of the test, or until stop is called.
func (h *host) run(change func(*bridge.Config)) (stop func() error) {
	h.t.Helper()
	settings := config.Default()
	settings.SearchPaths = []string{filepath.Join(h.dir, "ext")}
	settings.Watch.Enabled = false
	cfg := bridge.Config{Name: "b1", Host: "h1", Version: "1.0.0", Settings: settings, StateDir: filepath.Join(h.dir, "state"),
		Logger: slog.New(slog.NewTextHandler(&h.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- bridge.New(h.nc, cfg).Run(ctx) }() // ends with ctx
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	h.t.Cleanup(func() {
		if err := stop(); err != nil {
			h.t.Errorf("Run: %v", err)
		}
		if h.t.Failed() {
			h.t.Logf("log:\n%s", h.log.String())
		}
	})
	return stop
}

// answers waits until the extension's result is want.
func (h *host) answers(id, want string) {
	h.t.Helper()
	client := mesh.NewClient(h.nc, mesh.ClientOptions{})
	var got json.RawMessage
	var err error
	eventually(h.t, fmt.Sprintf("%s says %s", id, want), func() bool {
		got, err = client.Call(h.t.Context(), id+"/say", nil)
		return err == nil && string(got) == want
	}, func() string { return fmt.Sprintf("%s, %v", got, err) })
}

// other returns another connection. Its messages are not ordered with the messages of h.nc.
func (h *host) other() *nats.Conn {
	h.t.Helper()
	return h.srv.Connect()
}

func (h *host) waitGone(id string) {
	h.t.Helper()
	eventually(h.t, id+" is gone", func() bool {
		_, err := h.nc.Request("ext."+id+".rpc", []byte(`{"id":1,"method":"ping"}`), time.Second)
		return errors.Is(err, nats.ErrNoResponders)
	}, nil)
}

func eventually(t testing.TB, what string, cond func() bool, have func() string) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			if have != nil {
				what += "; have " + have()
			}
			t.Fatalf("still waiting: %s", what)
		}
	}
}

func (h *host) control(method, params string) string {
	h.t.Helper()
	m, err := h.nc.Request("ext.control.b1", fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params), time.Minute)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(m.Data)
}
