package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/pause"
)

// deniedPause is the wait before a request that NATS denied is repeated. Each attempt adds a line to this program's
// log and to the server's, and permissions are changed by people.
const deniedPause = 10 * time.Second

// errDenied means that the NATS user lacks a permission that the catalog needs.
var errDenied = errors.New("denied by NATS; see the permissions of a registry in docs/operations.md")

// explain adds to a JetStream error that the server denied the request. A denied request only times out; nats.go
// stores the permission error in the connection. before is the error stored there before the request: an earlier
// permission error does not explain a later timeout.
func (b *bucket) explain(before, err error) error {
	if err == nil || errors.Is(err, errDenied) || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
		return err
	}
	last := b.nc.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) || last == before { // each permission error is a new value
		return err
	}
	for _, subject := range []string{"$JS.API.", b.subject("")} {
		if strings.Contains(last.Error(), subject) {
			return fmt.Errorf("%w: %w (%w)", errDenied, last, err)
		}
	}
	return err
}

// pauseAfter waits after err: for the usual time, or for deniedPause after a denied request. It returns false when ctx is
// done.
func pauseAfter(ctx context.Context, err error, usual time.Duration) bool {
	if errors.Is(err, errDenied) {
		usual = deniedPause
	}
	return pause.For(ctx, usual)
}
