package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// TestLimits has a caller subscribe more often than callers need, and a bridge as often as a large one does.
func TestLimits(t *testing.T) {
	t.Parallel()
	url, _ := startShipped(t, "one.conf", nil)
	subscribe := func(user, subject string, n int) error {
		nc, err := nats.Connect(as(url, user), nats.Timeout(time.Minute), nats.SyncQueueLen(1), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		for range n {
			if _, err := nc.SubscribeSync(subject); err != nil {
				return err
			}
		}
		if err := nc.FlushTimeout(time.Minute); err != nil {
			return err
		}
		return nc.LastError()
	}
	if err := subscribe("agent", "_INBOX.agent.x", 999); err != nil {
		t.Errorf("an agent with 999 subscriptions: %v", err)
	}
	if err := subscribe("agent", "_INBOX.agent.x", 1100); err == nil || !strings.Contains(err.Error(), "maximum subscriptions") {
		t.Errorf("an agent with 1,100 subscriptions: %v", err)
	}
	if err := subscribe("bridge-0", "ext.who.cancel", 6000); err != nil {
		t.Errorf("a bridge with 6,000 subscriptions: %v", err)
	}
}
