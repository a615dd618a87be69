package natsconn

import (
	"testing"
	"time"
)

func TestReconnectDelay(t *testing.T) {
	for attempts, bound := range map[int]time.Duration{
		0: 200 * time.Millisecond, 1: 200 * time.Millisecond, 3: 800 * time.Millisecond, 7: 10 * time.Second, 1 << 40: 10 * time.Second,
	} {
		for range 1000 {
			if d := reconnectDelay(attempts); d < reconnectMin || d > bound {
				t.Fatalf("attempt %d: %v, want %v to %v", attempts, d, reconnectMin, bound)
			}
		}
	}
}
