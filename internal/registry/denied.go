package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// deniedPause is how long to wait before trying again what the server has not permitted. Each try costs a line in
// this program's log and one in the server's, and a permission is changed by people.
const deniedPause = time.Minute

// errDenied says that the user may not do what the catalog takes.
var errDenied = errors.New("denied by NATS; see the permissions of a registry in docs/operations.md")

// explain adds to an error of JetStream that it was a refusal. Of a refusal the request itself learns nothing, it
// only times out; nats.go keeps the last one with the connection, for as long as that stands. before is what was kept
// there when the request was about to be made: an earlier refusal does not explain a later silence.
func (b *bucket) explain(before, err error) error {
	if err == nil || errors.Is(err, errDenied) || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
		return err
	}
	last := b.nc.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) || last == before { // each is an error of its own
		return err
	}
	for _, subject := range []string{"$JS.API.", b.subject("")} {
		if strings.Contains(last.Error(), subject) {
			return fmt.Errorf("%w: %w (%w)", errDenied, last, err)
		}
	}
	return err
}

// rest waits after err for as long as usual, or much longer after a refusal, unless the connection is made anew,
// perhaps with other permissions. It reports false when ctx is done.
func (e *elector) rest(ctx context.Context, err error, usual time.Duration) bool {
	if !errors.Is(err, errDenied) {
		return sleep(ctx, usual)
	}
	t := time.NewTimer(deniedPause)
	defer t.Stop()
	select {
	case <-e.online:
	case <-t.C:
	case <-ctx.Done():
		return false
	}
	return true
}
