// Package heartbeat decides who on the mesh is alive. It is pure: no goroutine watches a clock on your behalf,
// nothing here knows NATS, and every decision is a function of what was observed and of the time you pass in.
//
// Three things make it up. A [Beat] is one sign of life as it stands on the wire (docs/protocol.md, "Beat"). A
// [Beacon] sends them: at once on a change of state, otherwise once an interval with a little jitter; all Beacons of a
// program are one set of [Beacons]. A [Monitor] hears them and tells what changed:
//
//	m := heartbeat.NewMonitor(heartbeat.Config{})
//	if c, ok := m.Observe(beat, time.Now()); ok {
//		log.Print(c) // weather/n1 ready
//	}
//	for range time.Tick(time.Second) {
//		for _, c := range m.Expire(time.Now()) {
//			log.Print(c) // weather/n1 lost after 45s
//		}
//	}
//
// The Monitor is somewhat like a failure detector of the memberlist kind, except that it is passive: it condemns
// the silent, and never for a silence that it cannot vouch for. A monitor that was paused, or cut off from the
// wire, has heard nobody; it then waits for a full grace period of listening before it calls anybody lost. Pauses
// it sees by itself, from the gap between two calls of Expire; being cut off it is told by [Monitor.Deaf].
//
// Layer: pure, below everything (see layers_test.go).
package heartbeat
