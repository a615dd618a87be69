package liveness

// schedule is a heap of Senders (container/heap); the first is due first. Each Sender stores its index so that Kick
// can move it.
type schedule []*Sender

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].due.Before(s[j].due) }

func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

// Push implements heap.Interface.
func (s *schedule) Push(x any) {
	b := x.(*Sender)
	b.index = len(*s)
	*s = append(*s, b)
}

// Pop implements heap.Interface.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	b := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	b.index = -1
	return b
}
