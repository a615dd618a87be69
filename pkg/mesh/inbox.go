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

// replyBacklog is how many replies of one call may wait to be taken: the frames between two
// acknowledgements, and then some.
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

// receive hands a reply to its call. One that nobody takes in time is dropped, which the numbers on the
// chunks show: this goroutine serves all calls. Progress, of which there may be any amount, gets half of the
// room, so that it never takes the answer's place.
func (b *inbox) receive(m *nats.Msg) {
	b.mu.Lock()
	replies := b.waiting[strings.TrimPrefix(m.Subject, b.prefix)]
	b.mu.Unlock()
	if replies == nil || len(replies) >= cap(replies)/2 && m.Header.Get(HeaderFrame) == frameProgress {
		return
	}
	select {
	case replies <- m:
	default:
	}
}
