package registry

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// BenchmarkSweep is what is done with each pulse, whatever happens: while it is done nobody is listened to.
func BenchmarkSweep(b *testing.B) {
	l := largeLoop(100_000)
	for b.Loop() {
		l.sweepExtensions(time.Now())
	}
}

func largeLoop(size int) *loop {
	l := &loop{memory: newMemory(heartbeat.Config{}), pub: newPublisher()}
	now := time.Now()
	for n := range size {
		x := newExtension(fmt.Sprintf("ext%06d", n))
		l.exts[x.id] = x
		a := &announced{Announce: mesh.Announce{ID: x.id, Version: "1.0.0", Instance: "one", HandshakeHash: "hash"}, at: now, size: 500}
		x.said["one"] = a
		x.tools = &shake{done: true, size: 1300}
		x.shakes[a.shakeKey()] = x.tools
		l.keep(x, x.size())
		l.mon.Declare(x.id, now)
		l.mon.Observe(heartbeat.Beat{ID: x.id, Instance: "one", Seq: 1, State: heartbeat.Ready}, now)
	}
	return l
}

// TestSweep: one round looks at everybody once, and what is counted is what is kept.
func TestSweep(t *testing.T) {
	l := largeLoop(10 * sweepRound)
	old := l.exts["ext000050"]
	old.asked["gone"] = new(asked) // on account of one that the monitor has forgotten
	old.said["two"] = &announced{Announce: mesh.Announce{ID: old.id, Version: "1.0.0", Instance: "two", HandshakeHash: "hash"},
		at: time.Now().Add(-unheardMost - time.Second), size: 500} // never beat
	l.placed(old, "two", &place{bridge: "b"})
	l.keep(old, 100_000) // by tools that were told twice, say
	l.sweepExtensions(time.Now())
	l.drop(l.exts[l.unswept[len(l.unswept)-1]]) // its turn comes all the same
	for range sweepRound - 1 {
		l.sweepExtensions(time.Now())
	}
	if want := (10*sweepRound - 1) * (500 + 1300); l.size != want {
		t.Errorf("%d bytes are counted, %d kept", l.size, want)
	}
	if len(l.unswept) != 0 {
		t.Errorf("%d were not looked at in a round", len(l.unswept))
	}
	if old.said["two"] != nil || old.places["two"] != nil || len(l.residents) != 0 || len(old.asked) != 0 {
		t.Errorf("what never beat stays: %v, %v, %v, %v", old.said, old.places, l.residents, old.asked)
	}
}

// TestResidents: whatever comes, moves and goes, a bridge's residents are those that are placed there.
func TestResidents(t *testing.T) {
	l := largeLoop(0)
	for range 10_000 {
		id := fmt.Sprintf("ext%d", rand.N(20))
		instance := fmt.Sprintf("i%d", rand.N(5))
		x := l.exts[id]
		if x == nil {
			x = newExtension(id)
			l.exts[id] = x
		}
		switch rand.N(10) {
		case 0:
			l.drop(x)
		case 1, 2, 3:
			l.displaced(x, instance)
		default:
			l.placed(x, instance, &place{bridge: []string{"", "a", "b", "c"}[rand.N(4)]})
		}
	}
	want := residences(l)
	if !reflect.DeepEqual(l.residents, want) {
		t.Errorf("got %v\nwant %v", l.residents, want)
	}
	for _, x := range l.exts {
		l.drop(x)
	}
	if len(l.residents) != 0 || len(l.exts) != 0 {
		t.Errorf("what was dropped stays: %v", l.residents)
	}
}

// TestKeep: what is let go of is no longer counted, at once.
func TestKeep(t *testing.T) {
	l := largeLoop(1)
	x := l.exts["ext000000"]
	for n := range 10 { // one after another, each with other tools
		a := &announced{Announce: mesh.Announce{ID: x.id, Version: "1.0.0", Instance: "one", HandshakeHash: fmt.Sprint(n)}, at: time.Now(), size: 100}
		l.say(x, a)
		s := &shake{done: true, size: 1000}
		x.shakes[a.shakeKey()] = s
		l.keep(x, s.size)
		x.tools = s
		if l.size != x.size() || l.size > 100+2*1300 {
			t.Fatalf("%d bytes are counted, %d kept", l.size, x.size())
		}
	}
	if l.drop(x); l.size != 0 {
		t.Errorf("%d bytes are counted, and nothing is kept", l.size)
	}
}

// TestAskedBounded: an instance that the monitor has made room for another one is not remembered for what was asked on
// its account.
func TestAskedBounded(t *testing.T) {
	l := largeLoop(1)
	x, now := l.exts["ext000000"], time.Now()
	l.mon = heartbeat.NewMonitor(heartbeat.Config{MaxPerID: 10})
	l.mon.Declare(x.id, now)
	l.requested = now
	for n := range 5 * maxSaid {
		b := heartbeat.Beat{ID: x.id, Instance: fmt.Sprintf("i%d", n), Seq: 1, State: heartbeat.Shutdown}
		l.mon.Observe(b, now)
		l.considerAsking(x, &b, now)
	}
	if n := len(x.asked); n > 2*maxSaid || n == 0 {
		t.Errorf("%d are remembered", n)
	}
}

// TestHeldWhileBlind: a state that the catalog has and this leader has not taken over yet is not deleted because the view
// has a gap just then.
func TestHeldWhileBlind(t *testing.T) {
	l := largeLoop(0)
	known, other := stateKey("known"), "host.other"
	l.view.records = map[string]record{known: {seq: 1, value: []byte("{}")}}
	l.unrestored["known"] = true
	l.pub.mark(known, true)
	l.pub.mark(other, true)
	if got := l.pub.take(l.held, l.rest); !slices.Equal(got, []string{other}) {
		t.Errorf("written without a view: %v", got)
	}
	l.view.synced = true
	if got := l.pub.take(l.held, l.rest); !slices.Equal(got, []string{known}) {
		t.Errorf("written with a view: %v", got)
	}
}

// TestLongStatesRest: what a thousand instances say is written now and then, unless it is that they take calls; and nobody
// else waits for it.
func TestLongStatesRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := largeLoop(2)
		long, short := stateKey("ext000000"), stateKey("ext000001")
		start := time.Now()
		next := func(want ...string) {
			t.Helper()
			<-l.pub.timer.C
			l.pub.due()
			if got := l.pub.take(l.held, l.rest); !slices.Equal(got, want) {
				t.Fatalf("after %v: %v, want %v", time.Since(start), got, want)
			}
		}
		l.tire(short, largeState)
		l.tire(long, 10*largeState)
		l.pub.mark(long, false)
		l.pub.mark(short, false)
		next(short)
		l.pub.mark(short, false) // the timer is set to the end of the rest, and comes sooner
		next(short)
		if took := time.Since(start); took != 2*collectFor {
			t.Errorf("the short one waited %v", took)
		}
		l.pub.mark(long, true)
		if got := l.pub.take(l.held, l.rest); !slices.Equal(got, []string{long}) {
			t.Errorf("urgent: %v", got)
		}
		l.pub.mark(long, false)
		next()
		ready, lost := heartbeat.Ready, heartbeat.Lost
		l.changed(heartbeat.Change{Kind: heartbeat.Moved, ID: "ext000000", Instance: "two", From: ready, To: lost, WasBest: ready, Best: ready})
		l.changed(heartbeat.Change{Kind: heartbeat.Moved, ID: "ext000000", Instance: "two", From: lost, To: ready, WasBest: ready, Best: ready})
		if got := l.pub.take(l.held, l.rest); len(got) != 0 {
			t.Errorf("one of many is urgent: %v", got)
		}
		next(long)
		if took := time.Since(start); took != 10*largeRest {
			t.Errorf("the long one rested %v", took)
		}
		l.tire(long, 10*largeState)
		l.pub.mark(long, false)
		next() // and the timer is set to the end of the rest
		at := time.Now()
		l.changed(heartbeat.Change{Kind: heartbeat.Moved, ID: "ext000000", Instance: "one", From: ready, To: lost, WasBest: ready, Best: lost})
		next(long)
		if took := time.Since(at); took != collectFor {
			t.Errorf("that it takes no calls any more waited %v", took)
		}
		l.tire(long, 10*largeState)
		l.changed(heartbeat.Change{Kind: heartbeat.Moved, ID: "ext000000", Instance: "one", From: lost, To: ready, WasBest: lost, Best: ready})
		if got := l.pub.take(l.held, l.rest); !slices.Equal(got, []string{long}) {
			t.Errorf("that it takes calls: %v", got)
		}
		if d := restAfter(1 << 30); d != maxRest {
			t.Errorf("the longest rests %v", d)
		}
	})
}

// TestRepeats: an announce that says what is known has nothing looked at again; any other has.
func TestRepeats(t *testing.T) {
	l := largeLoop(0)
	l.Registry = New(nil, Config{})
	say := func(change func(a *announced)) bool {
		a := &announced{Announce: mesh.Announce{ID: "weather", Version: "1.0.0", Instance: "one", Bridge: "b", HandshakeHash: "h",
			Transport: "stdio", Dialect: "ext", SubjectPrefix: string(l.cfg.Prefix)}, at: time.Now(), digest: "d", size: 10}
		change(a)
		clear(l.reconsider)
		if l.admit(a, time.Now()) == nil {
			t.Fatal("refused")
		}
		return l.reconsider["weather"]
	}
	same := func(*announced) {}
	for _, tc := range []struct {
		name string
		do   func()
		say  func(a *announced)
		want bool
	}{
		{"first", func() {}, same, true},
		{"again", func() {}, same, false},
		{"another digest", func() {}, func(a *announced) { a.digest = "e" }, true},
		{"and back", func() {}, same, true},
		{"a leader dropped it", func() { l.exts["weather"].dropped = true }, same, true},
		{"its bridge began anew", func() { l.bridges["b"].host = &mesh.Host{Since: time.Unix(1, 0)} }, same, true},
		{"again there", func() {}, same, false},
		{"its tools are not vouched for", func() {}, func(a *announced) { a.HandshakeHash = "" }, true},
	} {
		tc.do()
		if got := say(tc.say); got != tc.want {
			t.Errorf("%s: looked at again: %v", tc.name, got)
		}
	}
	if l.size != 10 || l.exts["weather"].dropped {
		t.Errorf("%d bytes are counted; dropped: %v", l.size, l.exts["weather"].dropped)
	}
}

// TestUpgradeOfMany: who sees the tools of a new version sees that somebody has it, however long the state has to rest.
func TestUpgradeOfMany(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		old := b.ext("weather", "1.0.0", "n1", "get")
		old.up()
		old.keepBeating()
		b.await("it is up", b.is("weather", heartbeat.Ready))
		if err := r.ask(b.timeout(), func(l *loop) { l.tire(stateKey("weather"), 100*largeState) }); err != nil {
			t.Fatal(err)
		}
		specs := make(chan *nats.Msg, 100)
		if _, err := b.nc.ChanSubscribe(prefix.CatalogEvents()+".spec.weather", specs); err != nil {
			t.Fatal(err)
		}
		b.flush(b.nc)
		anew := b.ext("weather", "2.0.0", "n2", "get", "set")
		anew.up()
		for m := range specs {
			if !bytes.Contains(m.Data, []byte(`"2.0.0"`)) {
				continue
			}
			if d := b.state("weather"); len(d.Instances) != 2 || d.Instances[1].State != heartbeat.Ready {
				t.Errorf("the spec shows what nobody has: %+v", d.Instances)
			}
			return
		}
	})
}

// TestNoSkills: a bridge that says it has none has been heard.
func TestNoSkills(t *testing.T) {
	l := largeLoop(0)
	b := l.bridgeNamed("b", time.Now())
	one := []mesh.SkillEntry{{Dir: "a", Name: "A"}}
	for _, tc := range []struct {
		skills []mesh.SkillEntry
		marks  int
	}{{[]mesh.SkillEntry{}, 0}, {one, 1}, {slices.Clone(one), 0}, {[]mesh.SkillEntry{{Dir: "a", Name: "B"}}, 1}, {[]mesh.SkillEntry{}, 1}} {
		clear(l.pub.dirty)
		if l.replaceSkills(b, tc.skills); b.skills == nil || len(l.pub.dirty) != tc.marks {
			t.Errorf("%v: heard %v, %d marks, want %d", tc.skills, b.skills, len(l.pub.dirty), tc.marks)
		}
	}
}
