package natsd

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/freeport"
	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/internal/natsd/storelock"
	"github.com/extmesh/extmesh/internal/natstest"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func startServer(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

func connect(t *testing.T, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append(opts, nats.Timeout(time.Minute))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func TestStartKeepsDataAcrossRestarts(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, Config{StoreDir: dir, Port: -1})
	if !strings.HasPrefix(s.ClientURL(), "nats://127.0.0.1:") {
		t.Errorf("ClientURL = %q, want loopback", s.ClientURL())
	}
	kv, err := natstest.JetStream(t, connect(t, s.ClientURL())).CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	s.Shutdown()

	s = startServer(t, Config{StoreDir: dir, Port: -1})
	nc := connect(t, "", s.InProcess())
	if got := nc.MaxPayload(); got != 4<<20 {
		t.Errorf("max payload %d", got)
	}
	if kv, err = natstest.JetStream(t, nc).KeyValue(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	e, err := kv.Get(t.Context(), "k")
	if err != nil || string(e.Value()) != "v" {
		t.Errorf("after a restart: %v, %v", e, err)
	}
}

func TestSecondServerIsRefused(t *testing.T) {
	dir := t.TempDir()
	if _, ok := storelock.Running(dir); ok {
		t.Error("Running before any start")
	}
	s := startServer(t, Config{StoreDir: dir, Port: -1})
	_, err := Start(Config{StoreDir: dir, Port: -1})
	var locked *storelock.LockedError
	if !errors.As(err, &locked) {
		t.Fatalf("second start: %v, want a LockedError", err)
	}
	for _, want := range []string{strconv.Itoa(os.Getpid()), s.ClientURL(), dir} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if i, ok := storelock.Running(dir); !ok || i.URL != s.ClientURL() || i.PID != os.Getpid() {
		t.Errorf("Running = %+v, %v", i, ok)
	}
	s.Shutdown()
	if i, ok := storelock.Running(dir); ok {
		t.Errorf("Running after the shutdown = %+v, want none", i)
	}
	startServer(t, Config{StoreDir: dir, Port: -1})
}

func TestTakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	_, err = Start(Config{StoreDir: dir, Port: l.Addr().(*net.TCPAddr).Port})
	var port *PortError
	if !errors.As(err, &port) || port.Addr != l.Addr().String() {
		t.Fatalf("%v, want a PortError for %s", err, l.Addr())
	}
	startServer(t, Config{StoreDir: dir, Port: -1}) // the failed start has released the lock
}

// TestOnePortForTwo starts two servers with the same port at the same time: one gets it, and the other fails with a
// PortError, whenever it detects the conflict.
func TestOnePortForTwo(t *testing.T) {
	for range 10 {
		port := freeport.Port(t)
		var errs [2]error
		var wg sync.WaitGroup
		for i := range errs {
			dir := t.TempDir()
			wg.Go(func() { // ends with its server's start
				var s *Server
				if s, errs[i] = Start(Config{Port: port, StoreDir: dir}); errs[i] == nil {
					t.Cleanup(s.Shutdown)
				}
			})
		}
		wg.Wait()
		if errs[0] != nil {
			errs[0], errs[1] = errs[1], errs[0]
		}
		if errs[0] != nil || !errors.As(errs[1], new(*PortError)) {
			t.Fatalf("the two servers returned %v and %v", errs[0], errs[1])
		}
	}
}

// TestStoreMustBeADirectory: the error is about the store, and not that a server does not become ready.
func TestStoreMustBeADirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{"": "the store directory is missing", file: file} {
		if _, err := Start(Config{StoreDir: dir, Port: -1}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("store %q: %v, want an error with %q", dir, err, want)
		}
	}
}

func TestRequirePassword(t *testing.T) {
	dir := t.TempDir()
	var log logBuffer
	s := startServer(t, Config{StoreDir: dir, Port: -1, RequirePassword: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	info, ok := storelock.Running(dir)
	if !ok || len(info.Password) < 20 || info.URL != s.ClientURL() {
		t.Fatalf("%+v, %v", info, ok)
	}
	if _, err := connect(t, info.URLWithPassword()).RTT(); err != nil {
		t.Error(err)
	}
	nc := connect(t, "", s.InProcess())
	if _, err := jetstream.New(nc); err != nil {
		t.Error(err)
	}
	for name, opts := range map[string][]nats.Option{
		"no credentials": nil,
		"no user":        {nats.UserInfo("", info.Password)},
		"another user":   {nats.UserInfo("other", info.Password)},
		"no password":    {nats.UserInfo(storelock.User, "")},
		"half of it":     {nats.UserInfo(storelock.User, info.Password[:len(info.Password)/2])},
		"as a token":     {nats.Token(info.Password)},
	} {
		if nc, err := nats.Connect(s.ClientURL(), append(opts, nats.Timeout(time.Minute))...); !errors.Is(err, nats.ErrAuthorization) {
			nc.Close()
			t.Errorf("%s: %v", name, err)
		}
	}
	if strings.Contains(log.String(), "level=WARN") || strings.Contains(log.String(), info.Password) {
		t.Errorf("log:\n%s", log.String())
	}
	s.Shutdown()
	startServer(t, Config{StoreDir: dir, Port: -1, RequirePassword: true})
	if again, _ := storelock.Running(dir); again.Password == info.Password {
		t.Error("the password is not new")
	}
}

// logBuffer is a log that the server's goroutines write and a test reads.
type logBuffer struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
