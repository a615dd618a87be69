package liveness_test

import (
	"fmt"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

func ExampleMonitor() {
	m := liveness.NewMonitor(liveness.Config{})
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

	message := heartbeat.Message{ID: "weather", Instance: "n1"}
	if c, ok := m.Observe(message, now); ok {
		fmt.Println(c.ID, c.Instance, c.Kind, c.To)
	}
	for range 60 {
		now = now.Add(time.Second)
		for _, c := range m.Expire(now) {
			fmt.Println(c.ID, c.Instance, c.Kind, c.Reason)
		}
	}
	if c, ok := m.Observe(message, now); ok {
		fmt.Println(c.ID, c.Instance, c.Kind, c.To)
	}
	// Output:
	// weather n1 new ready
	// weather n1 lost no heartbeat for 45s
	// weather n1 back ready
}
