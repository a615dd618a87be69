package mesh

import (
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestStandstill: the timer is seconds late, because the process stood still. Its calls are not taken for silent at once, but
// if nothing comes after that.
func TestStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := &place{replies: make(chan *nats.Msg, replyBacklog), deadline: began.Add(time.Hour), heard: began}
		b := inbox{waiting: map[string]*place{"": p}}
		p.due, p.again, b.armed = began.Add(wire.SilenceLimit), p.deadline, began.Add(wire.SilenceLimit) // without arm: nothing fires in time
		time.Sleep(time.Minute)
		b.expire()
		if quiet := b.silence(p); len(p.replies) > 0 || quiet >= wire.SilenceLimit {
			t.Errorf("after the standstill the call is silent for %v, %d looks", quiet, len(p.replies))
		}
		<-p.replies
		if quiet, took := b.silence(p), time.Since(began); quiet < wire.SilenceLimit || took != time.Minute+standstill {
			t.Errorf("after %v the call is silent for %v", took, quiet)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.timer.Stop()
	})
}

// TestInboxScans waits for calls that become due one by one, some by their deadlines and some by silence. The timer scans
// them at most a hundred times a second, and each gets its message in time, or a moment later.
func TestInboxScans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, apart = 1000, time.Millisecond
		b := inbox{waiting: map[string]*place{}}
		type word struct {
			at   time.Time
			late time.Duration
		}
		words := make(chan word, calls)
		for i := range calls {
			due := time.Now().Add(time.Second)
			p := &place{token: strconv.Itoa(i), replies: make(chan *nats.Msg, replyBacklog), deadline: due}
			if i%2 == 0 {
				due, p.deadline = time.Now().Add(wire.SilenceLimit), due.Add(time.Hour)
			}
			b.mu.Lock()
			b.waiting[p.token] = p
			b.expect(p, time.Now().Add(wire.SilenceLimit), p.deadline)
			b.mu.Unlock()
			go func() { // ends with its message
				<-p.replies
				words <- word{time.Now(), time.Since(due)}
			}()
			time.Sleep(apart)
		}
		scans := map[time.Time]bool{}
		for range calls {
			w := <-words
			scans[w.at] = true
			if w.late < 0 || w.late > scanEvery {
				t.Errorf("told %s late", w.late)
			}
		}
		if limit := 2 * (1 + int(calls*apart/scanEvery)); len(scans) > limit { // a second of deadlines, and one of silence
			t.Errorf("%d scans for %d calls, want %d at most", len(scans), calls, limit)
		}
		b.mu.Lock()
		b.timer.Stop()
		b.mu.Unlock()
	})
}

// TestSilenceAfterALateRead: the goroutine of a call reads a frame a moment after it arrived, and nothing else arrives. The
// call fails when the silence is over, not at its deadline.
func TestSilenceAfterALateRead(t *testing.T) {
	natstest.InBubble(t, func(t *testing.T) {
		srv, connect := serverInBubble(t)
		c := &Client{nc: connect(nats.InProcessServer(srv)), opt: ClientOptions{Logger: slog.New(slog.DiscardHandler)}}
		c.inbox.waiting = map[string]*place{}
		p := &place{token: "t", replies: make(chan *nats.Msg, replyBacklog), deadline: time.Now().Add(time.Minute)}
		c.inbox.waiting[p.token] = p
		began := time.Now()
		c.inbox.receive(&nats.Msg{Subject: "t", Header: nats.Header{wire.HeaderFrame: {wire.FrameAccepted}}})
		time.Sleep(50 * time.Millisecond) // fake time
		r := reception{c: c, t: target{id: "x", guard: c.guardOf("x")}}
		_, err := r.receive(t.Context(), p)
		if took := time.Since(began); !errors.Is(err, rpc.CodeExited) || took > wire.SilenceLimit+scanEvery {
			t.Errorf("after %s: %v", took, err)
		}
		c.inbox.mu.Lock()
		c.inbox.timer.Stop()
		c.inbox.mu.Unlock()
	})
}

// TestNoStandstill: calls without time left make the timer fire at once, which is not late.
func TestNoStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		b := inbox{waiting: map[string]*place{}}
		open := func(token string, deadline time.Time) *place {
			p := &place{token: token, replies: make(chan *nats.Msg, replyBacklog), deadline: deadline}
			b.mu.Lock()
			defer b.mu.Unlock()
			b.waiting[token] = p
			p.heard = time.Now()
			b.expect(p, p.heard.Add(wire.SuspectAfter), p.heard.Add(wire.SilenceLimit))
			return p
		}
		silent := open("silent", began.Add(time.Hour))
		for n := 0; len(silent.replies) == 0; n++ {
			time.Sleep(100 * time.Millisecond)
			<-open("late", time.Now().Add(-time.Minute)).replies
		}
		if took := time.Since(began); took > wire.SuspectAfter+200*time.Millisecond {
			t.Errorf("the silent call has its first look after %v", took)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.timer.Stop()
	})
}
