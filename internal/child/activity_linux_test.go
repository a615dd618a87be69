package child_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/child"
)

// TestActivity: processes that compute, write or start others work, also as descendants, and one that waits does not.
func TestActivity(t *testing.T) {
	noSurvivors(t)
	for name, s := range map[string]child.Spec{"compute": spec("compute"), "log": spec("log"), "breed": spec("breed"),
		"a child computes": spec("fork-wait", "compute"), "a daemon logs": spec("daemon", "log")} {
		enough := errors.New("enough")
		err := run(t, t.Context(), s, func(ctx context.Context, p *child.Process) error {
			defer p.Terminate()
			first, at := p.Activity(), time.Now()
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for range tick.C {
				switch {
				case p.Activity().WorkedSince(first, time.Since(at)):
					return enough
				case time.Since(at) > time.Minute:
					t.Errorf("%s: no work seen: %+v, then %+v", name, first, p.Activity())
					return enough
				}
			}
			return nil
		})
		if !errors.Is(err, enough) {
			t.Error(err)
		}
	}
	_ = run(t, t.Context(), spec("ignore-eof"), func(ctx context.Context, p *child.Process) error {
		if _, err := untilUp(p); err != nil {
			return err
		}
		before := p.Activity()
		// Nothing is measured over time here: on a busy machine the runtime's own work may take a tick.
		if p.Activity().WorkedSince(before, time.Hour) || before.WorkedSince(child.Activity{}, 0) {
			t.Errorf("a process that waits works: %+v", p.Activity())
		}
		p.Terminate()
		return nil
	})
}
