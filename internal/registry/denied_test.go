package registry

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// TestDenied: a registry without its permissions logs that, at most once for each try, shows it in its status, tries again
// after a pause, and continues to process heartbeats.
func TestDenied(t *testing.T) {
	const tries = 1 + 5*time.Minute/deniedPause // within five minutes, at most
	for _, tc := range []struct {
		subject string
		most    int64 // denied requests in that time
	}{
		{"$JS.API.>", int64(tries)},
		{"$KV.>", int64(tries)},
		{"$JS.API.DIRECT.GET.>", 2 * int64(tries)}, // the bucket can be written but not followed
	} {
		t.Run(tc.subject, func(t *testing.T) {
			inBubbleDenied(t, []string{tc.subject}, func(t *testing.T, b *bed) {
				var refused atomic.Int64
				nc, err := nats.Connect("", nats.Timeout(time.Minute), nats.InProcessServer(b), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) { refused.Add(1) }))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(nc.Close)
				var log syncBuffer
				r, _ := b.registryOn(nc, Config{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelInfo}))})
				b.await("heartbeats are processed", func() bool {
					b.publish(prefix.Announce("mail"), `{"id":"mail","version":"1.0.0","instance":"n"}`)
					b.publish(prefix.Heartbeat("mail"), `{"id":"mail","instance":"n"}`)
					return b.status(r).Instances[heartbeat.Ready] == 1
				})
				time.Sleep(5 * time.Minute) // fake time
				if n := refused.Load(); n < 1 || n > tc.most {
					t.Errorf("refused %d times", n)
				}
				text := log.String()
				if n := strings.Count(text, "denied by NATS"); n < 1 || n > int(tries) {
					t.Errorf("logged %d times:\n%s", n, text)
				}
				if s := b.status(r); !strings.Contains(s.JetStream, "denied by NATS") {
					t.Errorf("status shows %q", s.JetStream)
				}
			})
		})
	}
}

// TestPermittedAgain: after a reconnect with the missing permission the registry continues with its next try.
func TestPermittedAgain(t *testing.T) {
	for _, subject := range []string{"$JS.API.DIRECT.GET.>", "$JS.API.>"} { // the first one blocks readers of the catalog, the second one the elector
		t.Run(subject, func(t *testing.T) {
			inBubbleDenied(t, []string{subject}, func(t *testing.T, b *bed) {
				r, _ := b.registry(Config{})
				b.await("it is denied", func() bool { return strings.Contains(b.status(r).JetStream, "denied by NATS") })
				b.stop()
				b.denied = nil
				b.start(true)
				b.awaitFor(2*deniedPause, "it leads", func() bool { s := b.status(r); return s.Leading && s.JetStream == "ok" })
			})
		})
	}
}

// TestOldDenial: only a permission error after the start of a request explains its timeout.
func TestOldDenial(t *testing.T) {
	inBubbleDenied(t, []string{"$JS.API.STREAM.NAMES"}, func(t *testing.T, b *bed) {
		k := &bucket{nc: b.nc, prefix: prefix}
		violate := func() error {
			if err := errors.Join(b.nc.Publish("$JS.API.STREAM.NAMES", nil), b.nc.FlushWithContext(b.timeout())); err != nil {
				t.Fatal(err)
			}
			return b.nc.LastError()
		}
		before := violate()
		if !errors.Is(before, nats.ErrPermissionViolation) {
			t.Fatalf("publishing is not denied: %v", before)
		}
		if err := k.explain(before, context.DeadlineExceeded); errors.Is(err, errDenied) {
			t.Errorf("an earlier permission error explains a timeout: %v", err)
		}
		violate()
		if err := k.explain(before, context.DeadlineExceeded); !errors.Is(err, errDenied) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second, equal permission error does not explain a timeout: %v", err)
		}
	})
}

// TestUselessHolder: a registry that has acquired the lease but may not read the catalog, or receives no messages, gives the lease
// up, so that another one leads.
func TestUselessHolder(t *testing.T) {
	for name, limits := range map[string]*server.Permissions{
		"it may not read the catalog":     {Publish: &server.SubjectPermission{Deny: []string{"$JS.API.DIRECT.GET.>"}}},
		"it may not receive heartbeats":   {Subscribe: &server.SubjectPermission{Deny: []string{"ext.registry.>"}}},
		"it may not receive its messages": {Subscribe: &server.SubjectPermission{Deny: []string{"ext.registry.>", "ext.>"}}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleDenied(t, nil, func(t *testing.T, b *bed) {
				b.stop()
				b.change = func(o *server.Options) {
					o.NoAuthUser = "permitted"
					o.Users = []*server.User{{Username: "permitted", Password: "p"}, {Username: "limited", Password: "p", Permissions: limits}}
				}
				b.start(true)
				limited, err := nats.Connect("", nats.Timeout(time.Minute), nats.InProcessServer(b), nats.UserInfo("limited", "p"),
					nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(limited.Close)
				var log syncBuffer
				b.registryOn(limited, Config{Name: "limited", Logger: slog.New(slog.NewTextHandler(&log, nil))})
				b.await("it has the lease", func() bool { return strings.Contains(log.String(), "msg=elected") })
				other, _ := b.registry(Config{Name: "other"})
				time.Sleep(takeOverLimit + 30*time.Second) // fake time
				if !b.status(other).Leading || !strings.Contains(log.String(), "gave up the lease") {
					t.Errorf("the other registry does not lead:\n%s", log.String())
				}
			})
		})
	}
}
