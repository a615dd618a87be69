package liveness

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// run runs Senders in the bubble until the test ends.
func run(t *testing.T, s *Senders, publish func(heartbeat.Message) error) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx, publish) }() // ends with the test
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func ready(id string) func() heartbeat.Message {
	return func() heartbeat.Message { return heartbeat.Message{ID: id, State: heartbeat.Ready} }
}

// TestSenderCadence checks the cadence of 1 and of 100 Senders in one set.
func TestSenderCadence(t *testing.T) {
	for _, n := range []int{1, 100} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			at, turns := map[string][]time.Duration{}, map[time.Duration]bool{}
			s := NewSenders(0)
			for i := range n {
				s.Add(ready(fmt.Sprint(i)))
			}
			run(t, s, func(b heartbeat.Message) error {
				now := time.Since(start)
				at[b.ID], turns[now] = append(at[b.ID], now), true
				if b.Seq != uint64(len(at[b.ID])) || b.IntervalMS != 15_000 || !b.TS.Equal(time.Now()) {
					t.Errorf("beat: %+v", b)
				}
				return nil
			})
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			early := 0
			for id, at := range at {
				if at[0] < 7500*time.Millisecond {
					early++
				}
				if at[0] >= 15*time.Second {
					t.Errorf("the first heartbeat of %s came after %v", id, at[0])
				}
				for i := 1; i < len(at); i++ {
					if d := at[i] - at[i-1]; d < 13500*time.Millisecond || d >= 16500*time.Millisecond {
						t.Errorf("heartbeat %d of %s came %v after the previous one", i+1, id, d)
					}
				}
				if n := len(at); n < 36 || n > 45 {
					t.Errorf("%d heartbeats of %s in 10 minutes", n, id)
				}
			}
			if len(at) != n || n == 100 && (early < 10 || early > 90) {
				t.Errorf("%d of %d Senders sent heartbeats, %d of them in the first half of the interval", len(at), n, early)
			}
			if limit := int(10*time.Minute/(250*time.Millisecond)) + 1; len(turns) > limit {
				t.Errorf("%d heartbeats woke the goroutine %d times, want at most %d", 40*n, len(turns), limit)
			}
		})
	}
}

func TestSenderKick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state, beats := heartbeat.Spawning, []heartbeat.Message{}
		s := NewSenders(time.Minute)
		b := s.Add(func() heartbeat.Message { return heartbeat.Message{State: state} })
		b.Kick() // before Run
		run(t, s, func(b heartbeat.Message) error { beats = append(beats, b); return nil })
		synctest.Wait()
		state = heartbeat.Ready
		b.Kick()
		b.Kick()
		synctest.Wait()
		if len(beats) < 2 || len(beats) > 3 || beats[0].State != heartbeat.Spawning || beats[1].State != heartbeat.Ready {
			t.Fatalf("beats: %+v", beats)
		}
		n := len(beats)
		time.Sleep(53 * time.Second)
		synctest.Wait()
		if len(beats) != n {
			t.Error("a kick did not postpone the next heartbeat")
		}
		(*Sender)(nil).Kick()
	})
}

// TestSenderKickDuringPublish: a change during a publish leads to another heartbeat immediately after it.
func TestSenderKickDuringPublish(t *testing.T) {
	for _, err := range []error{nil, errors.New("not connected")} {
		synctest.Test(t, func(t *testing.T) {
			start, state, beats := time.Now(), heartbeat.Spawning, []heartbeat.Message{}
			s := NewSenders(time.Minute)
			b := s.Add(func() heartbeat.Message { return heartbeat.Message{State: state} })
			b.Kick()
			run(t, s, func(beat heartbeat.Message) error {
				if beats = append(beats, beat); len(beats) == 1 {
					state = heartbeat.Ready
					b.Kick()
					return err
				}
				return nil
			})
			synctest.Wait()
			if len(beats) != 2 || beats[1].State != heartbeat.Ready || time.Since(start) != 0 {
				t.Errorf("beats after %v: %+v", time.Since(start), beats)
			}
		})
	}
}

// TestSenderPublishFails: a failed publish is tried again after a second with the same sequence number.
func TestSenderPublishFails(t *testing.T) {
	for _, interval := range []time.Duration{heartbeat.MinInterval, time.Minute, heartbeat.MaxInterval} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			var at []time.Duration
			s := NewSenders(interval)
			s.Add(ready("weather")).Kick()
			run(t, s, func(b heartbeat.Message) error {
				if at = append(at, time.Since(start)); b.Seq != 1 && len(at) <= 4 {
					t.Errorf("try %d has the number %d", len(at), b.Seq)
				}
				if len(at) < 4 {
					return errors.New("not connected")
				}
				return nil
			})
			time.Sleep(4 * (time.Second + interval/60))
			synctest.Wait()
			if len(at) < 4 {
				t.Fatalf("tries: %v", at)
			}
			for i := range 3 {
				if d := at[i+1] - at[i]; d < time.Second || d > time.Second+interval/60 {
					t.Errorf("tries: %v", at)
				}
			}
		})
	}
}

// TestSenderStop: after Stop has returned, no heartbeat of that Sender follows; the others continue.
func TestSenderStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSenders(0)
		gone := s.Add(ready("gone"))
		s.Add(ready("stays"))
		publishing, goOn := make(chan struct{}), make(chan struct{})
		var mu sync.Mutex
		beats := map[string]int{}
		of := func(id string) int { mu.Lock(); defer mu.Unlock(); return beats[id] }
		var once sync.Once
		run(t, s, func(b heartbeat.Message) error {
			if b.ID == "gone" {
				once.Do(func() { close(publishing); <-goOn })
			}
			mu.Lock()
			defer mu.Unlock()
			beats[b.ID]++
			return nil
		})
		gone.Kick()
		<-publishing
		gone.Kick() // would be the next heartbeat
		stopped := make(chan int, 1)
		go func() { gone.Stop(); stopped <- of("gone") }() // ends when the heartbeat is published
		close(goOn)
		sent := <-stopped
		if sent != 1 && sent != 2 { // the second may be published before Stop
			t.Errorf("Stop returned after %d heartbeats, want 1 or 2", sent)
		}
		gone.Kick()
		gone.Stop()
		before := of("stays")
		time.Sleep(time.Minute)
		synctest.Wait()
		if of("gone") != sent || of("stays") < before+3 {
			t.Errorf("heartbeats: %v; %d when Stop returned", beats, sent)
		}
	})
}

// TestSendersConcurrent adds, kicks and stops Senders from many goroutines while the set runs.
func TestSendersConcurrent(t *testing.T) {
	s := NewSenders(0)
	var mu sync.Mutex
	last := map[string]uint64{}
	run(t, s, func(b heartbeat.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if b.Seq != last[b.ID]+1 {
			t.Errorf("%s: heartbeat %d after %d", b.ID, b.Seq, last[b.ID])
		}
		last[b.ID] = b.Seq
		return nil
	})
	of := func(id string) uint64 { mu.Lock(); defer mu.Unlock(); return last[id] }
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { // ends after its loop
			for j := range 200 {
				id := fmt.Sprint(i, "/", j)
				b := s.Add(ready(id))
				for range j % 4 {
					b.Kick()
				}
				b.Stop()
				n := of(id)
				b.Kick()
				if of(id) != n {
					t.Errorf("%s was published after Stop", id)
				}
			}
		})
	}
	wg.Wait()
	if len(s.due) != 0 {
		t.Errorf("%d Senders are left in the schedule", len(s.due))
	}
}

func BenchmarkSenders(b *testing.B) {
	s := NewSenders(0)
	for range 1000 {
		s.Add(ready("weather"))
	}
	publish := func(heartbeat.Message) error { return nil }
	b.ReportAllocs()
	for b.Loop() { // as much as a thousand instances do in 15 s, with 60 wakeups
		for range 60 {
			s.schedule()
			s.schedule()
		}
		for sender := range s.due {
			s.publish(sender, publish)
		}
	}
}
