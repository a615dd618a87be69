package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// What docs/protocol.md says about times and limits of decisions that internal/fleet takes.
const (
	settleTime    = 30 * time.Second
	requestEvery  = 10 * time.Second
	maxRequests   = 3
	maxPerID      = 4 << 20
	maxBridges    = 10_000
	probeInterval = 500 * time.Millisecond
)

const prefix = wire.Prefix("ext")

// limit bounds what must happen at some time: it is far above what an idle machine needs.
const limit = time.Minute

// bed is one NATS server with JetStream, and the registries connected to it.
type bed struct {
	*testing.T
	server atomic.Pointer[server.Server]
	dir    string
	nc     *nats.Conn
	denied []string // publish permissions denied to all users
	change func(*server.Options)
	// interval is what the heartbeats of fakeExt contain; an instance is lost after three intervals without one.
	interval time.Duration
}

// newBed is for tests that do not depend on the passing of time: a fakeExt that has sent one heartbeat stays ready, even
// if the machine is so busy that the test takes a minute.
func newBed(t *testing.T) *bed {
	t.Parallel()
	b := makeBed(t, nil)
	b.interval = 30 * time.Second
	return b
}

// inBubble runs a test with a fake clock. The server and its clients are inside the bubble.
func inBubble(t *testing.T, f func(t *testing.T, b *bed)) { inBubbleDenied(t, nil, f) }

// inBubbleDenied is inBubble with a server that denies publishing on some subjects.
func inBubbleDenied(t *testing.T, denied []string, f func(t *testing.T, b *bed)) {
	natstest.InBubble(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Second) }) // fake time: the store's flushers end a moment after the server
		f(t, makeBed(t, denied))
	})
}

// makeBedWith is for tests that need other server options.
func makeBedWith(t *testing.T, change func(*server.Options)) *bed {
	return startBed(&bed{T: t, dir: t.TempDir(), change: change, interval: time.Second})
}

func makeBed(t *testing.T, denied []string) *bed {
	return startBed(&bed{T: t, dir: t.TempDir(), denied: denied, interval: time.Second})
}

func startBed(b *bed) *bed {
	t := b.T
	b.start(true)
	t.Cleanup(func() { b.stop() })
	b.nc = b.connect()
	return b
}

// start starts the server. A second call, after stop, uses the same store.
func (b *bed) start(js bool) {
	b.Helper()
	o := &server.Options{ServerName: "test", DontListen: true, NoSigs: true, NoLog: true, JetStream: js, StoreDir: b.dir}
	if b.denied != nil {
		o.NoAuthUser = "somebody"
		o.Users = []*server.User{{Username: o.NoAuthUser, Password: "none", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: b.denied}}}}
	}
	if b.change != nil {
		b.change(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		b.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(limit) {
		b.Fatal("the server is not ready")
	}
	b.server.Store(s)
}

func (b *bed) stop() {
	b.server.Load().Shutdown()
	b.server.Load().WaitForShutdown()
}

// InProcessConn connects to the server that runs at the moment.
func (b *bed) InProcessConn() (net.Conn, error) { return b.server.Load().InProcessConn() }

func (b *bed) connect() *nats.Conn {
	b.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(b), nats.Timeout(limit), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		b.Logf("connection: %v", err)
	}))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	return nc
}

// registry runs a replica until the test ends or stop is called.
func (b *bed) registry(cfg Config) (r *Registry, stop func()) {
	b.Helper()
	return b.registryOn(b.connect(), cfg)
}

func (b *bed) registryOn(nc *nats.Conn, cfg Config) (r *Registry, stop func()) {
	b.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(testWriter{b.T}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if cfg.LeaseTTL == 0 {
		cfg.LeaseTTL = 10 * time.Second // a loaded machine must not cause leader changes
	}
	r = New(nc, cfg)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }() // ends with stop
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
					b.Errorf("Run: %v", err)
				}
			case <-time.After(limit):
				b.Error("Run does not return")
			}
		})
	}
	b.Cleanup(stop)
	return r, stop
}

// timeout is a context with a deadline for calls that would otherwise take a timer from nats.go's pool.
func (b *bed) timeout() context.Context { return b.within(limit) }

func (b *bed) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), d)
	b.Cleanup(cancel)
	return ctx
}

// leading waits until r writes the catalog.
func (b *bed) leading(r *Registry) {
	b.Helper()
	b.await("a registry leads", func() bool { return b.status(r).Leading })
}

func (b *bed) status(r *Registry) Status {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), limit)
	defer cancel()
	s, err := r.Status(ctx)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

var quiet = slog.New(slog.DiscardHandler)

// testWriter logs while the test runs and discards what comes later.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Logf("%s", p[:len(p)-1])
	}
	return len(p), nil
}

// await polls until cond holds: the events have no channel to wait on.
func (b *bed) await(what string, cond func() bool) {
	b.Helper()
	b.awaitFor(limit, what, cond)
}

// awaitFor evaluates the condition less often when it takes longer: in a bubble, minutes of waiting are thousands of
// evaluations otherwise.
func (b *bed) awaitFor(limit time.Duration, what string, cond func() bool) {
	b.Helper()
	pause, began := time.Millisecond, time.Now()
	deadline := began.Add(limit)
	for !cond() {
		if time.Now().After(deadline) {
			b.Fatalf("timed out waiting until %s", what)
		}
		<-time.After(pause)
		pause = min(pause*5/4+1, max(20*time.Millisecond, time.Since(began)/50)) // fake time passes quickly
	}
}

func (b *bed) get(key string) []byte {
	ctx := b.timeout()
	r, ok, err := b.bucket().newest(ctx, key)
	for errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // each attempt has a second, which a busy machine may take
		r, ok, err = b.bucket().newest(ctx, key)
	}
	if err != nil || !ok || r.Deleted() {
		return nil
	}
	return r.Value
}

func (b *bed) spec(id string) (s wire.Spec, ok bool) {
	v := b.get(fleet.SpecKey(id))
	return s, v != nil && json.Unmarshal(v, &s) == nil
}

func (b *bed) state(id string) (d wire.StateDoc) {
	if v := b.get(fleet.StateKey(id)); v != nil {
		if err := json.Unmarshal(v, &d); err != nil {
			b.Errorf("state of %s: %v", id, err)
		}
	}
	return d
}

func (b *bed) is(id string, s heartbeat.State) func() bool {
	return func() bool { return b.state(id).State == s }
}

func (b *bed) publish(subject string, doc any) {
	b.Helper()
	data, err := json.Marshal(doc)
	if raw, ok := doc.(string); ok {
		data, err = []byte(raw), nil
	}
	if err == nil {
		err = b.nc.Publish(subject, data)
	}
	if err != nil && b.Context().Err() == nil {
		b.Error(err)
	}
}

// fakeExt is one instance of an extension, implemented on plain NATS messages.
type fakeExt struct {
	*bed
	nc               *nats.Conn
	a                wire.Announce
	mu               sync.Mutex
	tools            []string
	handshakes       int // number of initialize requests
	pings            int
	sub              *nats.Subscription
	seq              uint64
	digest           string // digest of the announcement in heartbeats
	hang             bool   // do not answer pings
	ignoreInitialize bool   // do not answer initialize
	fault            *rpc.Error
	owner            *fakeBridge // lists the instance; nil for one that announces itself
	frames           []*nats.Msg // the answer to a request that accepts chunks
}

func (b *bed) ext(id, version, instance string, tools ...string) *fakeExt {
	e := &fakeExt{bed: b, nc: b.nc, tools: tools, a: wire.Announce{SchemaVersion: 1, ID: id, Version: version,
		Instance: instance, Host: "host-" + instance, Bridge: "bridge-" + instance, Transport: "stdio",
		Features: []string{wire.FeatureInstance}, HandshakeHash: fmt.Sprint("hash of ", tools)}}
	e.serve()
	b.Cleanup(func() {
		e.silence()
	})
	return e
}

// serve answers requests on the instance's subject until silence is called.
func (e *fakeExt) serve() {
	e.Helper()
	subject := prefix.InstanceRPC(e.a.ID, e.a.Instance)
	if e.a.Instance == "" {
		subject = prefix.RPC(e.a.ID)
	}
	sub, err := e.nc.Subscribe(subject, e.answer)
	if err != nil {
		e.Fatal(err)
	}
	e.flush(e.nc)
	e.sub = sub
}

// flush waits until the server has processed what was sent. nats.go returns ErrConnectionClosed for a pending flush
// when the connection is lost, even if it is about to reconnect; a server that was stopped a moment ago is noticed
// late.
func (b *bed) flush(nc *nats.Conn) {
	b.Helper()
	ctx := b.timeout()
	for {
		err := nc.FlushWithContext(ctx)
		if err == nil {
			return
		}
		if nc.IsClosed() || ctx.Err() != nil {
			b.Fatal(err)
		}
		<-time.After(time.Millisecond)
	}
}

func (e *fakeExt) silence() {
	if e.sub != nil {
		_ = e.sub.Unsubscribe()                              // the connection may be closed already
		_ = e.nc.FlushWithContext(e.within(5 * time.Second)) // the server may be stopped
		e.sub = nil
	}
}

func (e *fakeExt) answer(m *nats.Msg) {
	var req struct {
		Method string `json:"method"`
		Params struct {
			ExtensionID string `json:"extension_id"`
		} `json:"params"`
	}
	if err := json.Unmarshal(m.Data, &req); err != nil {
		e.Errorf("request: %v", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if m.Header.Get(wire.HeaderStream) == "1" && len(e.frames) > 0 {
		for _, f := range e.frames {
			f.Subject = m.Reply
			if err := e.nc.PublishMsg(f); err != nil {
				e.Logf("frame: %v", err)
			}
		}
		return
	}
	result := any(struct{}{})
	if req.Method == "initialize" {
		e.handshakes++
		if e.ignoreInitialize {
			return
		}
		list := []map[string]any{}
		for _, name := range e.tools {
			list = append(list, map[string]any{"name": name, "description": "does " + name, "input_schema": map[string]any{"type": "object"}})
		}
		result = map[string]any{"server_version": e.a.Version, "tools": list, "hooks": []string{"after_message"}}
	} else {
		e.pings++
		if e.hang {
			return
		}
	}
	answer := map[string]any{"jsonrpc": "2.0", "id": 1, "result": result}
	if e.fault != nil {
		answer = map[string]any{"jsonrpc": "2.0", "id": 1, "error": e.fault}
	}
	data, err := json.Marshal(answer)
	if err != nil {
		e.Error(err)
	}
	if err := m.Respond(data); err != nil {
		e.Logf("respond: %v", err)
	}
}

func (e *fakeExt) count(n *int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return *n
}

func (e *fakeExt) announce() {
	if e.owner == nil {
		e.publish(prefix.Announce(e.a.ID), e.a)
	}
}

func (e *fakeExt) heartbeat(s heartbeat.State) {
	if e.owner != nil {
		e.owner.set(e.entry(e.owner.name, s))
		return
	}
	e.mu.Lock()
	e.seq++
	b := heartbeat.Message{ID: e.a.ID, Version: e.a.Version, Instance: e.a.Instance, Seq: e.seq, IntervalMS: e.interval.Milliseconds(), State: s, Announced: e.digest}
	e.mu.Unlock()
	e.publish(prefix.Heartbeat(e.a.ID), b)
}

// sendHeartbeats sends heartbeats with the state ready five times a second until stop is called or the test ends.
func (e *fakeExt) sendHeartbeats() (stop func()) {
	ctx, cancel := context.WithCancel(e.Context())
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		for pause.For(ctx, 200*time.Millisecond) {
			e.heartbeat(heartbeat.Ready)
		}
	}()
	stop = func() { cancel(); <-done }
	e.Cleanup(stop)
	return stop
}

func (e *fakeExt) up() {
	e.announce()
	e.heartbeat(heartbeat.Ready)
}

// announceOnRequest announces again on every announce request.
func (e *fakeExt) announceOnRequest() {
	sub, err := e.nc.Subscribe(prefix.AnnounceRequest(), func(*nats.Msg) { e.announce() })
	if err != nil {
		e.Fatal(err)
	}
	e.flush(e.nc)
	e.Cleanup(func() { _ = sub.Unsubscribe() }) // the connection may be closed already
}

// waitFor polls until cond holds in the loop of r.
func (b *bed) waitFor(r *Registry, what string, cond func(f *fleet.Fleet) bool) {
	b.Helper()
	b.await(what, func() (ok bool) {
		if err := r.inLoop(b.Context(), func(l *loop) { ok = cond(l.fleet) }); err != nil {
			b.Fatal(err)
		}
		return ok
	})
}

func kvDelete(key string) *nats.Msg {
	m := nats.NewMsg("$KV.ext_catalog." + key)
	m.Header.Set("KV-Operation", "DEL")
	return m
}
