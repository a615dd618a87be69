package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// fleet plays extensions with one instance each: it announces them, answers for them, and beats for them, as their
// bridges would.
type fleet struct {
	nc     *nats.Conn
	size   int
	since  time.Time // when its bridges began
	answer []byte    // to initialize, ping, and everything else

	mu    sync.Mutex
	seq   []uint64          // of the last beat
	state []heartbeat.State // as it was said last
	said  []string          // the digest of what was announced last
}

const (
	beatEvery = 15 * time.Second
	hostSize  = 100 // extensions a bridge
)

// newFleet makes extensions with tools of the usual size: 1.3 kB each with their schemas.
func newFleet(nc *nats.Conn, extensions, tools int) (*fleet, error) {
	f := &fleet{nc: nc, size: extensions, since: time.Now().UTC(), seq: make([]uint64, extensions), state: make([]heartbeat.State, extensions), said: make([]string, extensions)}
	for n := range f.state {
		f.state[n] = heartbeat.Ready
	}
	var list []map[string]any
	for n := range tools {
		list = append(list, map[string]any{"name": fmt.Sprintf("tool_%d", n), "description": strings.Repeat("Does something useful. ", 8),
			"input_schema": json.RawMessage(`{"type":"object","properties":{` + properties(8) + `},"required":["field_0"]}`)})
	}
	var err error
	f.answer, err = json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1,
		"result": map[string]any{"server_version": "1.0.0", "tools": list, "hooks": []string{}}})
	if err != nil {
		return nil, err
	}
	respond := func(m *nats.Msg) { _ = m.Respond(f.answer) }                              // who asked asks again
	for _, subject := range []string{"ext.*.rpc.*", "ext.control.*", prefix.RPC(id(0))} { // the first takes calls, too
		if _, err := nc.Subscribe(subject, respond); err != nil {
			return nil, err
		}
	}
	_, err = nc.Subscribe(prefix.AnnounceRequest(), func(*nats.Msg) {
		_ = f.announce() // the registry asks again
	})
	return f, err
}

func properties(n int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf(`"field_%d":{"type":"string","description":"%s"}`, i, strings.Repeat("What it is good for. ", 4)))
	}
	return strings.Join(out, ",")
}

func id(n int) string { return fmt.Sprintf("sim%06d", n) }

func instance(n int) string { return fmt.Sprintf("n%06d", n) }

func (f *fleet) publish(subject string, doc any) (data []byte, err error) {
	if data, err = json.Marshal(doc); err == nil {
		err = f.nc.Publish(subject, data)
	}
	return data, err
}

// announce does what bridges do when they are asked to: each reports what it has, announces it, and beats right behind
// that.
func (f *fleet) announce() error {
	for first := 0; first < f.size; first += hostSize {
		end := min(first+hostSize, f.size)
		if err := f.report(first, end); err != nil {
			return err
		}
		for n := first; n < end; n++ {
			if err := f.announceOne(n); err != nil {
				return err
			}
		}
	}
	return nil
}

func bridge(n int) string { return fmt.Sprintf("host-%d", n/hostSize) }

// report is what the bridge of the extensions from first to before end says of itself.
func (f *fleet) report(first, end int) error {
	h := mesh.Host{Bridge: bridge(first), Host: bridge(first), Version: "1.0.0", Since: f.since}
	for n := first; n < end; n++ {
		h.Extensions = append(h.Extensions, id(n))
	}
	_, err := f.publish(prefix.HostReport(h.Bridge), h)
	return err
}

func (f *fleet) announceOne(n int) error {
	data, err := f.publish(prefix.Announce(id(n)), mesh.Announce{SchemaVersion: 1, ID: id(n), Version: "1.0.0", Instance: instance(n),
		Host: bridge(n), Bridge: bridge(n), Transport: "stdio", Dialect: "ext", Features: []string{mesh.FeatureInstance},
		ManifestHash: strings.Repeat("a", 64), HandshakeHash: strings.Repeat("b", 64)})
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.said[n] = mesh.AnnounceDigest(data)
	f.mu.Unlock()
	return f.again(n)
}

// again beats for one that has nothing new to say.
func (f *fleet) again(n int) error {
	f.mu.Lock()
	s := f.state[n]
	f.mu.Unlock()
	return f.beat(n, s)
}

// beat beats for one, which is in state s from now on.
func (f *fleet) beat(n int, s heartbeat.State) error {
	f.mu.Lock()
	f.seq[n]++
	f.state[n] = s
	b := heartbeat.Beat{ID: id(n), Instance: instance(n), Version: "1.0.0", Seq: f.seq[n], TS: time.Now(),
		IntervalMS: beatEvery.Milliseconds(), State: s, Announced: f.said[n]}
	f.mu.Unlock()
	_, err := f.publish(prefix.Heartbeat(id(n)), b)
	return err
}

// keepBeating beats for everybody from the index from on, spread evenly over the interval, until stop is called.
func (f *fleet) keepBeating(ctx context.Context, from int) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // owned by the caller of stop, which waits
		defer close(done)
		if from >= f.size {
			return
		}
		const step = 50 * time.Millisecond
		tick := time.NewTicker(step)
		defer tick.Stop()
		for owed, n := 0.0, from; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for owed += float64(f.size-from) * step.Seconds() / beatEvery.Seconds(); owed >= 1; owed-- {
				if f.again(n) != nil {
					return // the connection is closed: the stage is being taken down
				}
				if n++; n >= f.size {
					n = from
				}
			}
		}
	}()
	return func() { cancel(); <-done }
}
