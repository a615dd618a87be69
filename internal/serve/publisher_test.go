package serve

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
)

// TestRetiredServiceIsStopped: a service that could not be stopped without a connection is stopped when there is one.
func TestRetiredServiceIsStopped(t *testing.T) {
	nc := duckConn(t, duckServers(t, 1)[0])
	n := NewPublisher(nc, PublisherOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { n.Run(ctx) }) // ends with cancel
	defer wg.Wait()
	defer cancel()
	svc, err := n.addMicro(wire.Announce{ID: "x", Version: "1.0.0", SubjectPrefix: "ext", Instance: "i"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	n.mu.Lock() // as stop does without a connection
	n.retired = append(n.retired, svc)
	n.mu.Unlock()
	natstest.Eventually(t, "the service is stopped", svc.isStopped)
}

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
