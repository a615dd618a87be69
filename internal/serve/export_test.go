package serve

import "time"

// SetAbsence makes n look for callers that have gone earlier than it would. It is called before Run.
func (n *Publisher) SetAbsence(after, every time.Duration) {
	n.absentAfter, n.absentEvery = after, every
}
