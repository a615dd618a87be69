package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/breaker"
	state "github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestEndOfServingIsReported: when a run ends, its instance is not ready any more, however long the calls in flight take.
// A state that an operator requested takes precedence over the end of a run.
func TestEndOfServingIsReported(t *testing.T) {
	nc := inProcess(t)()
	for _, tt := range []struct {
		name   string
		do     func(s *instance, end, stop context.CancelCauseFunc)
		want   heartbeat.State
		reason string
	}{
		{"it crashes", func(_ *instance, end, _ context.CancelCauseFunc) { end(errors.New("it crashed")) }, heartbeat.Restarting, "it crashed"},
		{"it is drained", func(s *instance, _, _ context.CancelCauseFunc) { <-s.drain().retired }, heartbeat.Draining, "drain requested"},
		{"it is drained, and crashes", func(s *instance, end, _ context.CancelCauseFunc) {
			<-s.drain().retired
			end(errors.New("it crashed"))
		}, heartbeat.Draining, "drain requested"},
		{"it stops", func(_ *instance, _, stop context.CancelCauseFunc) { stop(nil) }, heartbeat.Draining, "stopping"},
		{"it crashes, and stops", func(_ *instance, end, stop context.CancelCauseFunc) {
			end(errors.New("it crashed"))
			stop(nil)
		}, heartbeat.Draining, "stopping"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := wire.Announce{ID: "one", Version: "1.0.0"}
			stays, stop := context.WithCancelCause(t.Context())
			s := &instance{workload: &workload{announce: a}, mesh: serve.NewPublisher(nc, serve.PublisherOptions{}).Join(a), stopped: func() bool { return stays.Err() != nil }}
			defer context.AfterFunc(stays, func() { s.apply(state.Stop, "") })() // as run does
			called, goOn := make(chan struct{}), make(chan struct{})
			h := rpc.HandlerFunc(func(context.Context, *rpc.Request) (json.RawMessage, error) {
				close(called)
				<-goOn
				return json.RawMessage("{}"), nil
			})
			runCtx, end := context.WithCancelCause(stays)
			ready := make(chan struct{})
			var serving sync.WaitGroup
			serving.Go(func() { // ends with runCtx
				if err := s.serveHandler(runCtx, h, serve.Options{OnReady: func() { close(ready) }}); err != nil {
					t.Error(err)
				}
			})
			<-ready
			if state, _ := s.mesh.State(); state != heartbeat.Ready {
				t.Errorf("it is %s", state)
			}
			if err := nc.PublishRequest("ext.one.rpc", nc.NewInbox(), []byte(`{"id":1,"method":"tools/x"}`)); err != nil {
				t.Fatal(err)
			}
			<-called
			tt.do(s, end, stop)
			var got heartbeat.State
			var reason string
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for deadline := time.Now().Add(time.Minute); got != tt.want && time.Now().Before(deadline); <-tick.C {
				got, reason = s.mesh.State()
			}
			if got != tt.want || reason != tt.reason {
				t.Errorf("with a call in flight it is %s: %s", got, reason)
			}
			close(goOn)
			end(nil)
			serving.Wait()
			if state, reason := s.mesh.State(); state != tt.want || reason != tt.reason {
				t.Errorf("after the calls it is %s: %s", state, reason)
			}
		})
	}
}

// TestOpenBreakerIsReportedAgain checks that the catalog shows a breaker as half-open when its delay is over, without a call:
// callers that have other instances make none.
func TestOpenBreakerIsReportedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var shown []heartbeat.BreakerState
		s := &instance{log: slog.New(slog.DiscardHandler)}
		s.changed = func() {
			mu.Lock()
			defer mu.Unlock()
			shown = append(shown, s.breakerState().State)
		}
		s.breaker = breaker.New("b", breaker.Settings{Threshold: 1, OnChange: s.breakerChanged})
		token, err := s.breaker.Acquire()
		if err != nil {
			t.Fatal(err)
		}
		token.Done(breaker.Failure)
		time.Sleep(11 * time.Second) // fake time
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if want := []heartbeat.BreakerState{heartbeat.BreakerOpen, heartbeat.BreakerHalfOpen}; !slices.Equal(shown, want) {
			t.Errorf("the catalog shows %v, want %v", shown, want)
		}
	})
}
