package heartbeat_test

import (
	"context"
	"fmt"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

func ExampleMonitor() {
	m := heartbeat.NewMonitor(heartbeat.Config{})
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

	beat, err := heartbeat.ParseBeat([]byte(`{"id":"weather","instance":"n1"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	if c, ok := m.Observe(beat, now); ok {
		fmt.Println(c)
	}
	for range 60 {
		now = now.Add(time.Second)
		for _, c := range m.Expire(now) {
			fmt.Println(c)
		}
	}
	if c, ok := m.Observe(beat, now); ok {
		fmt.Println(c)
	}
	// Output:
	// weather/n1: ready
	// weather/n1: ready → lost (no heartbeat for 45s)
	// weather/n1: lost → ready
}

func ExampleBeacons() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	beacons := heartbeat.NewBeacons(0)
	weather := beacons.Add(func() heartbeat.Beat {
		return heartbeat.Beat{ID: "weather", Instance: "n1", State: heartbeat.Ready}
	})
	weather.Kick() // the state has changed: send a heartbeat now
	err := beacons.Run(ctx, func(beat heartbeat.Beat) error {
		fmt.Println(beat.ID, beat.State, beat.IntervalMS)
		cancel()
		return nil
	})
	fmt.Println(err)
	// Output:
	// weather ready 15000
	// <nil>
}
