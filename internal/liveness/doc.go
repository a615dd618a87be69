// Package liveness detects missing heartbeats. It does no I/O: the detector reads no clock and starts no
// goroutine; every decision depends only on what was observed and on the time that the caller passes in.
//
// A [Monitor] receives heartbeats and returns what changed:
//
//	m := liveness.NewMonitor(liveness.Config{})
//	if c, ok := m.Observe(message, time.Now()); ok {
//		log.Println(c.ID, c.Instance, c.Kind, c.To) // weather n1 new ready
//	}
//	for range time.Tick(time.Second) {
//		for _, c := range m.Expire(time.Now()) {
//			log.Println(c.ID, c.Instance, c.Kind, c.Reason) // weather n1 lost no heartbeat for 45s
//		}
//	}
//
// The Monitor is a failure detector like memberlist's, but passive: it marks an instance lost when its heartbeats
// stop. It never does so for a time in which it could not receive any: after a pause of the process or a gap in its
// subscription it waits for a full grace period first. It detects pauses by itself, from the time between two calls
// of Expire; the caller reports subscription gaps with [Monitor.ListeningGap].
//
// Layer: pure, above pkg/heartbeat (see layers_test.go).
package liveness
