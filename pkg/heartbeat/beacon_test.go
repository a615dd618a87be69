package heartbeat

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// run runs a Beacon in the bubble until the test ends, and returns where its beats go.
func run(t *testing.T, b *Beacon, publish func(Beat) error) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.Run(ctx, publish) }() // ends with the test
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestBeaconCadence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		var seq []uint64
		b := NewBeacon(0, func() Beat { return Beat{ID: "weather", State: Ready} })
		run(t, b, func(b Beat) error {
			at, seq = append(at, time.Since(start)), append(seq, b.Seq)
			if b.ID != "weather" || b.IntervalMS != 15_000 || !b.TS.Equal(time.Now()) {
				t.Errorf("beat: %+v", b)
			}
			return nil
		})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if at[0] >= 15*time.Second {
			t.Errorf("the first beat came after %v", at[0])
		}
		for n := 1; n < len(at); n++ {
			if d := at[n] - at[n-1]; d < 13500*time.Millisecond || d >= 16500*time.Millisecond || seq[n] != seq[n-1]+1 {
				t.Errorf("beat %d came %v after number %d", seq[n], d, seq[n-1])
			}
		}
		if n := len(at); n < 36 || n > 45 {
			t.Errorf("%d beats in 10 minutes", n)
		}
	})
}

func TestBeaconKick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state, beats := Spawning, []Beat{}
		b := NewBeacon(time.Minute, func() Beat { return Beat{State: state} })
		b.Kick() // before Run
		run(t, b, func(b Beat) error { beats = append(beats, b); return nil })
		synctest.Wait()
		state = Ready
		b.Kick()
		b.Kick()
		synctest.Wait()
		if len(beats) < 2 || len(beats) > 3 || beats[0].State != Spawning || beats[1].State != Ready {
			t.Fatalf("beats: %+v", beats)
		}
		n := len(beats)
		time.Sleep(53 * time.Second)
		synctest.Wait()
		if len(beats) != n {
			t.Error("a kick did not move the next turn")
		}
	})
}

// TestBeaconPublishFails: a beat that could not be sent is tried again after a second, under its own number.
func TestBeaconPublishFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries []uint64
		b := NewBeacon(time.Minute, func() Beat { return Beat{} })
		b.Kick()
		run(t, b, func(b Beat) error {
			tries = append(tries, b.Seq)
			if len(tries) < 4 {
				return errors.New("not connected")
			}
			return nil
		})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if len(tries) != 4 || tries[3] != 1 {
			t.Errorf("tries: %v", tries)
		}
	})
}
