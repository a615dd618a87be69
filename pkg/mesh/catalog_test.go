package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

func TestCatalogLoad(t *testing.T) {
	b := newCatalogBed(t)
	if _, err := LoadCatalog(t.Context(), b.nc, CatalogOptions{}); !errors.Is(err, ErrNoCatalog) {
		t.Fatalf("without a bucket: %v, want ErrNoCatalog", err)
	}
	b.bucket()
	c, err := LoadCatalog(t.Context(), b.nc, CatalogOptions{})
	if err != nil || len(c.All()) != 0 {
		t.Fatalf("empty bucket: %v, %v", c.All(), err)
	}
	b.put("spec.weather", testSpec("weather", "1.0.0", "get", "a/b"))
	b.put("spec.google.gmail", testSpec("google.gmail", "2.0.0", "send"))
	b.put("spec.broken", `{"id":`)
	b.put("state.broken", testState(heartbeat.Failed))
	b.put("state.weather", testState(heartbeat.Ready))
	b.put("spec.gone", testSpec("gone", "1.0.0"))
	b.put("skill.pdf", wire.Skill{Name: "pdf", Body: "x"})
	want := b.put("host.h1", wire.Host{Bridge: "h1"})
	b.put(wire.KeyLease, "1")
	b.put(wire.KeyEpoch, `{"catalog_id":"2026-01-02T03:04:05Z"}`)
	b.del("lease.other")

	c, err = LoadCatalog(t.Context(), b.nc, CatalogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range c.All() {
		ids = append(ids, e.ID)
	}
	if !slices.Equal(ids, []string{"broken", "gone", "google.gmail", "weather"}) {
		t.Errorf("All = %v", ids)
	}
	if id, rev := c.Revision(); id != "2026-01-02T03:04:05Z" || rev != want {
		t.Errorf("Revision = %s, %d; want the last of spec, state, skill and host, %d", id, rev, want)
	}
	if e, _ := c.Get("broken"); e.Spec.Version != "" || e.SpecRevision != 0 || e.State.State != heartbeat.Failed {
		t.Errorf("broken = %+v: a spec that cannot be read is an empty one", e)
	}
	if len(c.Skills()) != 1 || len(c.Hosts()) != 1 {
		t.Errorf("skills %v, hosts %v", c.Skills(), c.Hosts())
	}
	if a := c.Age(); a < 0 || a > time.Minute {
		t.Errorf("Age = %v right after writes", a)
	}
	for name, want := range map[string]string{
		"ext_weather_get": "get", "weather/get": "get", "weather/a/b": "a/b", "google.gmail/send": "send",
		"ext_weather": "", "weather/": "", "nobody/get": "", "": "", "/": "",
	} {
		_, tool, ok := c.Tool(name)
		if ok != (want != "") || ok && tool.Own != want {
			t.Errorf("Tool(%q) = %v, %v; want %q", name, tool, ok, want)
		}
	}
	b.kv.Delete(t.Context(), "x")
	c, err = LoadCatalog(t.Context(), b.nc, CatalogOptions{Prefix: "ext"})
	if err != nil {
		t.Fatal(err)
	}
	if id, _ := c.Revision(); id != "2026-01-02T03:04:05Z" {
		t.Errorf("catalog id = %q: the registry's word goes first", id)
	}
}

func TestCatalogLoadPages(t *testing.T) {
	t.Parallel()
	b := newCatalogBed(t)
	b.bucket()
	pad := strings.Repeat("x", 40<<10)
	for i := range 120 { // 4.7 MiB: three pages
		s := testSpec(fmt.Sprintf("e%d", i), "1.0.0", "t")
		s.Description = pad
		b.put("spec."+s.ID, s)
	}
	c, err := LoadCatalog(t.Context(), b.nc, CatalogOptions{})
	if err != nil || len(c.All()) != 120 {
		t.Fatalf("%d extensions, %v", len(c.All()), err)
	}
}

func TestCatalogFollows(t *testing.T) {
	t.Parallel()
	b := newCatalogBed(t)
	c := b.follow(CatalogOptions{}) // before there is a bucket
	b.bucket()
	b.put("spec.a", testSpec("a", "1.0.0", "x", "y"))
	b.put("state.a", testState(heartbeat.Ready))
	await(t, c, "a is ready", has("a", heartbeat.Ready))

	b.put("spec.a", testSpec("a", "1.1.0", "y", "z"))
	b.put("state.a", testState(heartbeat.Lost))
	await(t, c, "a is lost", has("a", heartbeat.Lost))
	if _, _, ok := c.Tool("ext_a_x"); ok {
		t.Error("a tool of the old spec still resolves")
	}
	if e, tool, ok := c.Tool("ext_a_z"); !ok || tool.Own != "z" || e.Spec.Version != "1.1.0" {
		t.Errorf("ext_a_z = %v, %v, %v", e, tool, ok)
	}
	for _, id := range []string{"2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z"} { // the second: another bucket
		b.put(wire.KeyEpoch, `{"catalog_id":"`+id+`"}`)
		b.put("host."+id[18:], wire.Host{})
		await(t, c, "the registry's id for the catalog", func(c *Catalog) bool {
			have, _ := c.Revision()
			return have == id && len(c.Hosts()) > 0
		})
	}
	b.del("host.5Z")
	b.del("host.6Z")
	b.del("spec.a")
	b.del("state.a")
	await(t, c, "a is gone", func(c *Catalog) bool { return len(c.All()) == 0 })
	if len(c.data.names) != 0 {
		t.Errorf("names left behind: %v", c.data.names)
	}
	b.put("host.short", wire.Host{Bridge: "short"})
	await(t, c, "the host's report stands", func(c *Catalog) bool { return len(c.Hosts()) == 1 })
	js := natstest.JetStream(t, b.nc) // the KV API supports no TTL on an update
	if _, err := js.Publish(t.Context(), "$KV.ext_catalog.host.short", []byte(`{"bridge":"short"}`), jetstream.WithMsgTTL(time.Second)); err != nil {
		t.Fatal(err)
	}
	await(t, c, "the host's report expired", func(c *Catalog) bool { return len(c.Hosts()) == 0 })
}

// Every fault must leave the follower with what the bucket has.
func TestCatalogFaults(t *testing.T) {
	faults := map[string]func(t *testing.T, b *catalogBed, c *Catalog, follower *nats.Conn){
		"server restart": func(t *testing.T, b *catalogBed, c *Catalog, _ *nats.Conn) {
			b.srv.Restart(func(*server.Options) { // the server does not run here
				if !has("a", heartbeat.Ready)(c) {
					t.Error("without a server: not served from the copy")
				}
			})
		},
		"events lost": func(t *testing.T, b *catalogBed, _ *Catalog, _ *nats.Conn) {
			lose(t, b)
		},
		"forged event": func(t *testing.T, b *catalogBed, _ *Catalog, _ *nats.Conn) {
			m := nats.NewMsg("ext.registry.catalog.state.a")
			m.Data = []byte(`{"state":"lost"}`)
			m.Header.Set("Nats-Sequence", "4611686018427387904")
			m.Header.Set("Nats-Time-Stamp", time.Now().Add(time.Hour).Format(time.RFC3339Nano))
			if err := errors.Join(b.nc.PublishMsg(m), b.nc.Publish("ext.registry.catalog.junk", nil)); err != nil {
				t.Fatal(err)
			}
		},
		"bucket made anew, shorter": func(_ *testing.T, b *catalogBed, _ *Catalog, _ *nats.Conn) {
			b.dropBucket()
			b.bucket()
		},
		"bucket made anew, longer": func(_ *testing.T, b *catalogBed, _ *Catalog, _ *nats.Conn) {
			b.dropBucket()
			b.bucket()
			b.put("state.c", testState(heartbeat.Lost))
			for range 30 {
				b.put("state.d", testState(heartbeat.Lost))
			}
		},
		"bucket made anew while away": func(t *testing.T, b *catalogBed, _ *Catalog, follower *nats.Conn) {
			b.dropBucket()
			b.bucket()
			for range 30 {
				b.put("state.d", testState(heartbeat.Lost))
			}
			if err := follower.ForceReconnect(); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newCatalogBed(t)
			b.bucket()
			b.put("state.a", testState(heartbeat.Ready))
			b.put("state.b", testState(heartbeat.Ready))
			for range 10 {
				b.put("host.h", wire.Host{Bridge: "h"})
			}
			nc := b.connect()
			c := b.followOn(nc, CatalogOptions{})
			await(t, c, "a is ready", has("a", heartbeat.Ready))
			fault(t, b, c, nc)
			natstest.Eventually(t, "the writer's connection is back", func() bool { // a write may be lost with it
				put, stop := context.WithTimeout(t.Context(), time.Second)
				defer stop()
				_, err := b.kv.PutString(put, "state.z", `{"state":"ready"}`)
				return err == nil
			})
			await(t, c, "z is ready", has("z", heartbeat.Ready))
			b.compare(c)
		})
	}
}

// lose makes the server stop republishing for some writes, which a follower sees as it sees a lost event.
func lose(t *testing.T, b *catalogBed) {
	t.Helper()
	js := natstest.JetStream(t, b.nc)
	s, err := js.Stream(t.Context(), "KV_ext_catalog")
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	was := cfg.RePublish
	cfg.RePublish = nil
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	b.put("state.b", testState(heartbeat.Lost))
	b.put("state.c", testState(heartbeat.Lost))
	b.del("state.a")
	cfg.RePublish = was
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
}

// compare waits until the catalog has what the bucket has, and fails if it does not get there.
func (b *catalogBed) compare(c *Catalog) {
	b.t.Helper()
	want := map[string]uint64{}
	w, err := b.kv.WatchAll(b.t.Context(), jetstream.IgnoreDeletes(), jetstream.MetaOnly())
	if err != nil {
		b.t.Fatal(err)
	}
	for e := range w.Updates() {
		if e == nil {
			break
		}
		if !strings.HasPrefix(e.Key(), "lease.") {
			want[e.Key()] = e.Revision()
		}
	}
	if err := w.Stop(); err != nil {
		b.t.Fatal(err)
	}
	var have map[string]uint64
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	err = c.WaitFor(ctx, func(c *Catalog) bool {
		have = map[string]uint64{}
		c.mu.RLock()
		defer c.mu.RUnlock()
		for k, at := range c.data.copy.All() {
			if !strings.HasPrefix(k, "lease.") {
				have[k] = at.Seq
			}
		}
		return maps.Equal(have, want)
	})
	if err != nil {
		b.t.Errorf("the follower has\n%v\nthe bucket\n%v", have, want)
	}
}

// A random history with reconnects and lost events, compared with the bucket at the end.
func TestCatalogRandomHistory(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	b := newCatalogBed(t)
	b.bucket()
	nc := b.connect()
	c := b.followOn(nc, CatalogOptions{})
	watched := map[string]Event{}
	var mu sync.Mutex
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { // ends with cancel
		_ = c.Watch(ctx, func(ev Event) {
			mu.Lock()
			defer mu.Unlock()
			if ev.Op == opSynced {
				clear(watched)
				for _, e := range c.All() {
					watched["state."+e.ID] = Event{Revision: e.StateRevision, Op: opPut}
				}
				return
			}
			watched[ev.Key] = ev
		})
	})
	for i := range 600 {
		key := fmt.Sprintf("state.e%d", r.IntN(20))
		switch n := r.IntN(100); {
		case n == 0:
			if err := nc.ForceReconnect(); err != nil {
				t.Fatal(err)
			}
		case n == 1:
			lose(t, b)
		case n == 2 && i%3 == 0:
			b.dropBucket()
			b.bucket()
		case n < 30:
			b.del(key)
		default:
			b.put(key, testState(heartbeat.Ready))
		}
	}
	b.put("state.end", testState(heartbeat.Shutdown))
	await(t, c, "the end", has("end", heartbeat.Shutdown))
	b.compare(c)
	deadline := time.Now().Add(time.Minute)
	for { // the events of a watcher add up to the same
		mu.Lock()
		heard := map[string]uint64{}
		for k, ev := range watched {
			if ev.Op == opPut {
				heard[k] = ev.Revision
			}
		}
		mu.Unlock()
		have := map[string]uint64{}
		for _, e := range c.All() {
			have["state."+e.ID] = e.StateRevision
		}
		if maps.Equal(heard, have) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a watcher heard\n%v\nthe catalog has\n%v", heard, have)
		}
	}
	cancel()
	wg.Wait()
}

func TestCatalogSlowWatcher(t *testing.T) {
	b := newCatalogBed(t)
	b.bucket()
	c := b.follow(CatalogOptions{})
	await(t, c, "loaded", func(*Catalog) bool { return true })
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	synced := make(chan struct{})
	var events []Event
	var wg sync.WaitGroup
	wg.Go(func() { // ends with cancel
		err := c.Watch(ctx, func(ev Event) {
			if ev.Op == opSynced {
				close(synced)
				<-release
				return
			}
			events = append(events, ev)
			if ev.Key == "state.end" {
				cancel()
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Watch: %v", err)
		}
	})
	<-synced
	for range 200 {
		b.put("state.a", testState(heartbeat.Ready))
		b.put("state.b", testState(heartbeat.Lost))
	}
	b.del("state.b")
	b.put("state.end", testState(heartbeat.Ready))
	await(t, c, "the follower went on", has("end", heartbeat.Ready))
	close(release)
	wg.Wait()
	var got []string
	for _, ev := range events {
		got = append(got, fmt.Sprintf("%d %s %s", ev.Revision, ev.Op, ev.Key))
	}
	if want := []string{"399 put state.a", "401 delete state.b", "402 put state.end"}; !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}

func TestCatalogRunEndsWithTheConnection(t *testing.T) {
	b := newCatalogBed(t)
	b.bucket()
	nc := b.connect()
	c := NewCatalog(nc, CatalogOptions{})
	done := make(chan error, 1)
	go func() { done <- c.Run(t.Context()) }() // ends with the connection
	if err := c.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	nc.Close()
	select {
	case err := <-done:
		if !errors.Is(err, nats.ErrConnectionClosed) {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Run goes on without a connection")
	}
}

func TestCatalogAge(t *testing.T) {
	c := NewCatalog(nil, CatalogOptions{})
	if c.data.seenAt(catalog.Stamp{}); c.Age() < 1<<62 { // of a bucket without messages
		t.Errorf("Age of an empty catalog = %v", c.Age())
	}
	for name, tc := range map[string]struct {
		heard    time.Time
		min, max time.Duration
	}{
		"now":                   {time.Now(), 0, time.Second},
		"the wall clock ran on": {time.Now().Round(0).Add(-time.Hour), time.Hour, time.Hour + time.Second},
		"the server's is ahead": {time.Now().Add(time.Hour), 0, 0},
	} {
		c.data.seen = tc.heard
		if a := c.Age(); a < tc.min || a > tc.max {
			t.Errorf("%s: Age = %v", name, a)
		}
	}
}

func TestLoadExtension(t *testing.T) {
	b := newCatalogBed(t)
	if _, err := LoadExtension(t.Context(), b.nc, CatalogOptions{}, "weather"); !errors.Is(err, ErrNoCatalog) {
		t.Fatalf("without a bucket: %v, want ErrNoCatalog", err)
	}
	b.bucket()
	b.put("spec.weather", testSpec("weather", "1.0.0", "get"))
	b.put("state.weather", testState(heartbeat.Ready))
	b.put("spec.other", testSpec("other", "1.0.0", "get"))
	b.put("spec.gone", testSpec("gone", "1.0.0", "get"))
	b.del("spec.gone")
	for id, want := range map[string]int{"weather": 1, "nobody": 0, "gone": 0} {
		c, err := LoadExtension(t.Context(), b.nc, CatalogOptions{}, id)
		if err != nil || len(c.All()) != want {
			t.Errorf("%s: %v, %v; want %d extensions", id, c.All(), err, want)
		}
	}
	c, err := LoadExtension(t.Context(), b.nc, CatalogOptions{}, "weather")
	if err != nil {
		t.Fatal(err)
	}
	if e, _, ok := c.Tool("weather/get"); !ok || e.State.State != heartbeat.Ready {
		t.Errorf("weather/get: %+v, %v", e, ok)
	}
	if err := c.WaitSynced(t.Context()); err != nil || c.Age() > time.Minute {
		t.Errorf("%v, age %v", err, c.Age())
	}
	if _, err := LoadExtension(t.Context(), b.nc, CatalogOptions{}, "a.>"); err == nil {
		t.Error("an id that is a pattern was accepted")
	}
}

// TestCatalogAnswersLedAstray has a reader direct JetStream's answer, which contains one key's document, to the subject of
// another key's events, before the event of that document arrives. The follower ignores it, and takes in the event.
func TestCatalogAnswersLedAstray(t *testing.T) {
	b := newCatalogBed(t)
	b.bucket()
	b.put("spec.one", testSpec("one", "1"))
	b.put("spec.two", testSpec("two", "1"))
	b.put("state.one", testState(heartbeat.Ready))
	last := b.put("state.two", testState(heartbeat.Ready))
	c := b.follow(CatalogOptions{})
	await(t, c, "both are ready", func(c *Catalog) bool {
		return has("one", heartbeat.Ready)(c) && has("two", heartbeat.Ready)(c)
	})

	event := nats.NewMsg("ext.registry.catalog.state.one")
	event.Header.Set("Nats-Stream", "KV_ext_catalog")
	event.Header.Set("Nats-Subject", "$KV.ext_catalog.state.one")
	event.Header.Set("Nats-Sequence", strconv.FormatUint(last+1, 10))
	event.Header.Set("Nats-Time-Stamp", time.Now().UTC().Format(time.RFC3339Nano))
	event.Data = []byte(`{"state":"failed","available":false}`)
	astray := &nats.Msg{Subject: "ext.registry.catalog.state.two", Header: event.Header, Data: event.Data}
	for _, m := range []*nats.Msg{astray, event} {
		if err := b.nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	await(t, c, "the event is in", has("one", heartbeat.Failed))
	if !has("two", heartbeat.Ready)(c) {
		e, _ := c.Get("two")
		t.Errorf("the other extension is shown as %+v", e.State)
	}
}

// TestLoadWithoutSchemas keeps the names and the descriptions of tools.
func TestLoadWithoutSchemas(t *testing.T) {
	b := newCatalogBed(t)
	b.bucket()
	b.put("spec.weather", wire.Spec{ID: "weather", Version: "1.0.0", Tools: []wire.Tool{{Name: "ext_weather_today", Own: "today", Description: "It rains.",
		InputSchema: json.RawMessage(`{"type":"object"}`), Extra: []wire.Member{{Key: "title", Value: json.RawMessage(`"Today"`)}}}}})
	c, err := LoadCatalog(t.Context(), b.nc, CatalogOptions{NoSchemas: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, tool, ok := c.Tool("ext_weather_today"); !ok || tool.Description != "It rains." || tool.InputSchema != nil || tool.Extra != nil {
		t.Errorf("%+v", tool)
	}
}

// TestLoadKinds reads only some kinds of keys, and still the age and the id of the catalog.
func TestLoadKinds(t *testing.T) {
	b := newCatalogBed(t)
	b.bucket()
	for key, value := range map[string]string{
		"spec.weather": `{"id":"weather","version":"1.0.0"}`, "state.weather": `{"state":"ready"}`, "host.b1": `{"bridge":"b1"}`,
		"epoch.registry": `{"catalog_id":"2026-01-02T03:04:05Z"}`, "lease.registry": `{}`,
	} {
		b.put(key, value)
	}
	c, err := LoadCatalog(t.Context(), b.nc, CatalogOptions{}, wire.KindHost, wire.KindState)
	if err != nil {
		t.Fatal(err)
	}
	e, ok := c.Get("weather")
	if !ok || e.SpecRevision != 0 || e.State.State != "ready" || len(c.Hosts()) != 1 {
		t.Errorf("%+v, %v", e, c.Hosts())
	}
	if id, revision := c.Revision(); id != "2026-01-02T03:04:05Z" || revision == 0 || c.Age() > time.Minute {
		t.Error(id, revision, c.Age())
	}
}
