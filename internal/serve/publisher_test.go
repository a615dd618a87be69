package serve

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// TestClosedBeforeRun: the connection may be closed before the listener for that exists.
func TestClosedBeforeRun(t *testing.T) {
	nc := duckConn(t, duckServers(t, 1)[0])
	nc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := NewPublisher(nc, PublisherOptions{}).read(ctx); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("read returned %v", err)
	}
}
