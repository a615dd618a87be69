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

// TestDefaultReserve: a program without a limit of its own has the default one. Memory that was freed can be reserved again.
func TestDefaultReserve(t *testing.T) {
	reserve := NewPublisher(nil, PublisherOptions{}).opt.Reserve
	if !reserve(defaultMemory) || reserve(1) {
		t.Error("the limit is another one")
	}
	reserve(-defaultMemory)
	if !reserve(1) {
		t.Error("freed memory is still counted")
	}
}
