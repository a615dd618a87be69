package serve_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
)

// shippedRoles are options of a server with the accounts and users of deploy/nats/roles.conf; each user's password is its
// name, and the service is weather instead of primes.
func shippedRoles(t *testing.T) *server.Options {
	t.Helper()
	text, err := os.ReadFile("../../deploy/nats/roles.conf")
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`user: "([^"]+)", password: \$\w+`).ReplaceAll(text, []byte(`user: "$1", password: "$1"`))
	text = bytes.ReplaceAll(text, []byte("primes"), []byte("weather"))
	file := filepath.Join(t.TempDir(), "roles.conf")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	options, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	options.JetStream = true
	options.StoreDir = t.TempDir()
	return options
}

// TestCallerGoneAcrossAccounts has callers in the account AGENTS of the shipped roles, and the service in MESH: frames, and the
// status that there is no responder, cross from one account to the other, and between servers. The calls of a caller that goes end,
// and the call of a caller that stays does not.
func TestCallerGoneAcrossAccounts(t *testing.T) {
	t.Parallel() // with each other: they wait for keepalives
	t.Run("one server", func(t *testing.T) {
		t.Parallel()
		s := natstest.Start(t, shippedRoles(t))
		callerGoneAcross(t, s, s, s)
	})
	t.Run("three servers", func(t *testing.T) {
		t.Parallel()
		s := natstest.Cluster(t, 3, shippedRoles(t))
		callerGoneAcross(t, s[0], s[1], s[2])
	})
}

func callerGoneAcross(t *testing.T, service, stays, goes *natstest.Server) {
	as := func(s *natstest.Server, user string) *nats.Conn {
		return s.Connect(nats.UserInfo(user, user), nats.CustomInboxPrefix("_INBOX."+user), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			t.Errorf("%s: %v", user, err)
		}))
	}
	inflight, release := holding(t, as(service, "weather"), 1, serve.Options{MaxInflight: 1000})
	staying, going := as(stays, "agent"), as(goes, "agent")
	natstest.Eventually(t, "the service can be called from each server", func() bool {
		for _, nc := range []*nats.Conn{staying, going} {
			if m, err := nc.Request("ext.weather.rpc", []byte("no JSON"), time.Minute); err != nil || !strings.Contains(string(m.Data), "not JSON") {
				return false
			}
		}
		return true
	})
	var frames atomic.Int64
	answer := make(chan string, 1)
	inbox := staying.NewInbox()
	if _, err := staying.Subscribe(inbox, func(m *nats.Msg) {
		if m.Header.Get(wire.HeaderFrame) != "" {
			frames.Add(1)
			return
		}
		answer <- string(m.Data)
	}); err != nil {
		t.Fatal(err)
	}
	if err := staying.PublishMsg(heldStream(inbox)); err != nil {
		t.Fatal(err)
	}
	natstest.Eventually(t, "the caller that stays has called", func() bool { return inflight() == 1 })
	prefix := going.NewInbox()
	if _, err := going.Subscribe(prefix+".*", func(*nats.Msg) {}); err != nil { // frames arrive until it closes
		t.Fatal(err)
	}
	for n := range 256 {
		if err := going.PublishMsg(heldStream(fmt.Sprintf("%s.%d", prefix, n))); err != nil {
			t.Fatal(err)
		}
	}
	natstest.Eventually(t, "all calls are in flight", func() bool { return inflight() == 1+256 })
	before := frames.Load()
	natstest.Eventually(t, "both callers have got keepalives", func() bool { return frames.Load() >= before+3 })
	if n := inflight(); n != 1+256 {
		t.Fatalf("%d calls of callers that are there were cancelled", 1+256-n)
	}
	going.Close()
	natstest.Eventually(t, "the calls of the caller that has gone have ended", func() bool { return inflight() == 1 })
	close(release)
	select {
	case got := <-answer:
		if !strings.Contains(got, `"held"`) {
			t.Errorf("the caller that stayed got %s", got)
		}
	case <-time.After(time.Minute):
		t.Error("the caller that stayed got no answer")
	}
}
