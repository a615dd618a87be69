package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

const (
	rate        = 200 // calls a second
	callTimeout = 10 * time.Second
)

// load is calls at an even pace, every other one to the bridged extension and to the service, from three callers
// that begin at a server each.
type load struct {
	callers []guest
	clients []*mesh.Client
	stop    context.CancelFunc
	pace    sync.WaitGroup
	calls   sync.WaitGroup

	mu       sync.Mutex
	made     int
	inflight map[string]int            // by extension
	lost     map[string]map[string]int // by extension, by error
	slowest  time.Duration             // of those that were answered
}

// startLoad starts the calls.
func (s *stage) startLoad(ctx context.Context) (*load, error) {
	l := &load{inflight: map[string]int{}, lost: map[string]map[string]int{echoID: {}, nativeID: {}}}
	for i := range s.nodes {
		g, err := s.follow(fmt.Sprintf("caller-%d", i), i, nats.ReconnectBufSize(-1))
		if err != nil {
			return nil, err
		}
		l.callers = append(l.callers, g)
		l.clients = append(l.clients, mesh.NewClient(g.nc, mesh.ClientOptions{Catalog: g.catalog, Timeout: callTimeout}))
	}
	for _, g := range l.callers {
		ready, cancel := context.WithTimeout(ctx, patience)
		err := g.catalog.WaitFor(ready, s.whole)
		cancel()
		if err != nil {
			l.end()
			return nil, fmt.Errorf("a caller's catalog: %w", err)
		}
	}
	ctx, l.stop = context.WithCancel(ctx)
	l.pace.Go(func() { // ends with stop
		tick := time.NewTicker(time.Second / rate)
		defer tick.Stop()
		for began, n := time.Now(), 0; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for due := int(time.Since(began) * rate / time.Second); n < due; n++ { // what the ticker missed is made up for
				l.calls.Go(func() { l.call(context.WithoutCancel(ctx), n) }) // ends with its time-out
			}
		}
	})
	return l, nil
}

func (l *load) call(ctx context.Context, n int) {
	id := []string{echoID, nativeID}[n%2]
	l.mu.Lock()
	l.made++
	l.inflight[id]++
	l.mu.Unlock()
	began := time.Now()
	args := fmt.Appendf(nil, `{"n":%d}`, n)
	got, err := l.clients[n/2%len(l.clients)].Call(ctx, "ext_"+id+"_echo", json.RawMessage(args))
	if err == nil && string(got) != string(args) {
		err = fmt.Errorf("wrong answer %.40s", got)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inflight[id]--
	if err != nil {
		l.lost[id][kind(err)]++
		return
	}
	l.slowest = max(l.slowest, time.Since(began))
}

// kind sorts errors: by the mesh's word for them, and whether the call may have run.
func kind(err error) string {
	e, ok := errors.AsType[*rpc.Error](err)
	if !ok {
		return err.Error()
	}
	who := ""
	switch {
	case e.Code != rpc.CodeBreakerOpen:
	case strings.Contains(e.Message, "ext:nats:"):
		who = " at the caller"
	case strings.Contains(e.Message, "the registry finds"):
		who = " by the catalog"
	default:
		who = " at the bridge"
	}
	return fmt.Sprintf("%s%s, ran: %s", e.Code.Kind(), who, cmp.Or(string(e.Details().Ran), "?"))
}

// now is how many calls are in flight at an extension; "" means all.
func (l *load) now(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for at, k := range l.inflight {
		if id == "" || id == at {
			n += k
		}
	}
	return n
}

// end ends the load and waits for what is in flight.
func (l *load) end() {
	if l.stop != nil {
		l.stop()
	}
	l.pace.Wait()
	l.calls.Wait()
	for _, g := range l.callers {
		g.leave()
	}
}

// String lists the lost calls.
func (l *load) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	total := 0
	var parts []string
	for _, id := range []string{echoID, nativeID} {
		for _, kind := range slices.Sorted(maps.Keys(l.lost[id])) {
			total += l.lost[id][kind]
			parts = append(parts, fmt.Sprintf("%d %s (%s)", l.lost[id][kind], id, kind))
		}
	}
	if total == 0 {
		return "0"
	}
	return fmt.Sprintf("%d: %s", total, strings.Join(parts, ", "))
}
