package mesh

import (
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// inbox receives the replies of a Client's calls: one subscription for all of them, since a streaming call
// has more than one reply. It is subscribed with the first call and ends with the connection.
type inbox struct {
	nc *nats.Conn

	mu      sync.Mutex
	prefix  string
	waiting map[string]chan *nats.Msg // by token
	last    uint64
}

// replyBacklog is how many replies of one call may wait to be taken: the chunks between two acknowledgements,
// and as many and more of progress.
const replyBacklog = 32

// open makes a place for the replies of one call.
func (b *inbox) open(backlog int) (subject string, replies chan *nats.Msg, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting == nil {
		prefix := b.nc.NewInbox() + "."
		if _, err := b.nc.Subscribe(prefix+"*", b.receive); err != nil {
			return "", nil, err
		}
		b.prefix, b.waiting = prefix, map[string]chan *nats.Msg{}
	}
	b.last++
	token := strconv.FormatUint(b.last, 36)
	replies = make(chan *nats.Msg, backlog)
	b.waiting[token] = replies
	return b.prefix + token, replies, nil
}

// close drops what may still come for a call.
func (b *inbox) close(subject string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.waiting, strings.TrimPrefix(subject, b.prefix))
}

// receive hands a reply to its call. One that nobody takes in time is dropped: this goroutine serves all calls.
// Signs of life and progress are dropped while there is still room for the answer behind them; what else is
// missing shows in the numbers on the chunks.
func (b *inbox) receive(m *nats.Msg) {
	b.mu.Lock()
	replies := b.waiting[strings.TrimPrefix(m.Subject, b.prefix)]
	b.mu.Unlock()
	if replies == nil {
		return
	}
	switch m.Header.Get(HeaderFrame) {
	case frameProgress, frameAccepted, frameKeepalive:
		if len(replies) >= cap(replies)/2 { // only this goroutine puts anything in
			return
		}
	}
	select {
	case replies <- m:
	default:
	}
}
