package pause_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/pause"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !pause.For(t.Context(), time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("the pause ended after %v", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if pause.For(ctx, time.Minute) || time.Since(began) != time.Minute+time.Second {
			t.Errorf("the pause did not end with its context, but %v after the start", time.Since(began))
		}
	})
}
