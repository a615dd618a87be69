package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/freeport"
	"github.com/extmesh/extmesh/internal/natstest"
)

// logBuffer is a log that tests can read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
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

func resolve(t *testing.T, url string) Target {
	t.Helper()
	target, err := NATSFlags{Server: url}.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestConnectFailsImmediately(t *testing.T) {
	addr := "nats://" + freeport.Addr(t)
	_, err := resolve(t, addr).Connect(t.Context(), ConnectOptions{}) // one that tries again never returns here
	var ce *ConnectError
	if !errors.As(err, &ce) || ce.Addr != addr || !strings.Contains(err.Error(), "--server") {
		t.Errorf("%v; want a ConnectError that names %s and --server", err, addr)
	}
}

// A server that accepts the connection and sends nothing costs at most the caller's deadline: a caller with one has its
// error before a caller without.
func TestConnectHasADeadline(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	target := resolve(t, "nats://"+l.Addr().String())
	ended := make(chan string, 2)
	connect := func(ctx context.Context, name string) {
		if _, err := target.Connect(ctx, ConnectOptions{}); !errors.As(err, new(*ConnectError)) {
			t.Errorf("%s: %v; want a ConnectError", name, err)
		}
		ended <- name
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	go connect(t.Context(), "without a deadline") // ends when the listener is closed
	go connect(ctx, "with a deadline")            // ends with ctx
	if first := <-ended; first != "with a deadline" {
		t.Errorf("the caller %s has its error first", first)
	}
	l.Close()
	<-ended
}

// TestConnectEnds: the end of the caller's context ends connecting to several servers that do not answer.
func TestConnectEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	one := "nats://" + l.Addr().String()
	target := resolve(t, one+","+one+","+one)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := target.Connect(ctx, ConnectOptions{}); err != context.Canceled {
		t.Errorf("cancelled: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := target.Connect(ctx, ConnectOptions{}); !errors.As(err, new(*ConnectError)) {
		t.Errorf("out of time: %v", err)
	}
}

func TestConnectWaits(t *testing.T) {
	port := freeport.Port(t)
	url := "nats://127.0.0.1:" + itoa(port)
	var log logBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := resolve(t, url).Connect(ctx, ConnectOptions{Wait: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context ended: %v", err)
	}
	done := make(chan struct{})
	go func() { // ends when connected
		defer close(done)
		nc, err := resolve(t, url).Connect(t.Context(), ConnectOptions{Wait: true, Logger: logger})
		if err != nil {
			t.Error(err)
			return
		}
		nc.Close()
	}()
	natstest.Eventually(t, "a log line about waiting", func() bool {
		return strings.Contains(log.String(), "waiting for NATS") && strings.Contains(log.String(), url)
	})
	natstest.Start(t, &server.Options{Port: port}) // it listens as soon as the port is free
	<-done
}

func TestPermissionViolationIsSurfaced(t *testing.T) {
	srv := natstest.Start(t, &server.Options{Port: -1, Users: []*server.User{{
		Username: "u", Password: "p",
		Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"x"}}},
	}}})
	url := strings.Replace(srv.ClientURL(), "nats://", "nats://u:p@", 1)
	denied := make(chan error, 1)
	nc, err := resolve(t, url).Connect(t.Context(), ConnectOptions{OnDenied: func(err error) { denied <- err }})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.Publish("x", nil); err != nil {
		t.Fatal(err)
	}
	if err := <-denied; !errors.Is(err, nats.ErrPermissionViolation) {
		t.Error(err)
	}
	if _, err := resolve(t, srv.ClientURL()).Connect(t.Context(), ConnectOptions{}); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("without credentials: %v", err)
	}
}

// TestConnectIsQuick: programs use connections of internal/natsconn unless they set a dialer.
func TestConnectIsQuick(t *testing.T) {
	srv := natstest.Start(t, &server.Options{Port: -1})
	mine := &net.Dialer{}
	for name, tt := range map[string]struct {
		extra []nats.Option
		mine  bool
	}{
		"alone":       {nil, false},
		"with dialer": {[]nats.Option{nats.SetCustomDialer(mine)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			nc, err := resolve(t, srv.ClientURL()).Connect(t.Context(), ConnectOptions{Extra: tt.extra})
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			if d := nc.Opts.CustomDialer; d == nil || (d == nats.CustomDialer(mine)) != tt.mine {
				t.Errorf("the dialer is %#v", d)
			}
		})
	}
}
