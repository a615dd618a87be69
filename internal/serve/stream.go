package serve

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
)

// streams is the part of a Publisher that handles streaming calls: accepted and keepalive frames on time, and the messages to
// the reply subjects of frames: acknowledgements of chunks, and the server's status when a caller no longer listens.
type streams struct {
	open atomic.Int64 // calls in flight with a caller that takes frames

	mu       sync.Mutex
	services map[*service]struct{}
	tokens   map[string]*call // calls that sent a frame with a reply subject
}

func (t *streams) addService(s *service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.services == nil {
		t.services = map[*service]struct{}{}
		t.tokens = map[string]*call{}
	}
	t.services[s] = struct{}{}
}

func (t *streams) removeService(s *service) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.services, s)
}

// tick sends the frames that are due.
func (t *streams) tick(now time.Time) {
	if t.open.Load() == 0 {
		return
	}
	for _, s := range t.list() {
		s.calls.each(func(c *call) {
			if !c.stream || c.claimed.Load() {
				return
			}
			switch last := c.lastFrame.Load(); {
			case last == 0 && now.Sub(c.began) >= wire.AcceptedAfter:
				c.frame(wire.FrameAccepted, nil)
			case last != 0 && now.Sub(c.began)-time.Duration(last) >= wire.KeepaliveEvery-wire.StreamTick:
				c.frame(wire.FrameKeepalive, nil)
			}
		})
	}
}

func (t *streams) list() []*service {
	t.mu.Lock()
	defer t.mu.Unlock()
	services := make([]*service, 0, len(t.services))
	for s := range t.services {
		services = append(services, s)
	}
	return services
}

// ackSubject returns the reply subject for c's frames. Its token is random: every caller may publish on the ack subjects
// of an extension, and a guessed token would let one caller cancel the call of another.
func (t *streams) ackSubject(c *call) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.token == "" {
		c.token = rand.Text()
		t.tokens[c.token] = c
	}
	return c.s.ackPrefix + c.token
}

func (t *streams) dropToken(c *call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.token != "" {
		delete(t.tokens, c.token)
	}
}

// ackToken returns the token of an ack subject. No other subject that a Publisher reads matches: the id "ack" is reserved.
func ackToken(subject string) (token string, ok bool) {
	i := strings.LastIndexByte(subject, '.')
	return subject[i+1:], strings.HasSuffix(subject[:max(i, 0)], ".ack")
}

// acknowledged handles a message to an ack subject: the acknowledgement of a chunk, or the server's status that the caller's
// inbox has no subscription any longer.
func (t *streams) acknowledged(m *nats.Msg, token string) {
	t.mu.Lock()
	c := t.tokens[token]
	t.mu.Unlock()
	switch {
	case c == nil:
	case m.Header.Get("Status") == "503": // it reaches one subscription on this connection, of any replica
		c.cancel()
	case m.Sub != c.s.acks.Load(): // an acknowledgement reaches each replica: count it once
	default:
		if f := c.flow.Load(); f != nil {
			select {
			case f.acks <- struct{}{}:
			default:
			}
		}
	}
}

// flow is the flow control of one answer in chunks.
type flow struct {
	acks chan struct{}
	left chan struct{} // closed when the caller has gone
	once sync.Once
}

func (f *flow) leave() { f.once.Do(func() { close(f.left) }) }

// frame sends one frame of c's, unless c has its answer: nothing follows that.
func (c *call) frame(kind string, body []byte) {
	c.framing.Lock()
	defer c.framing.Unlock()
	if c.claimed.Load() {
		return
	}
	if c.send(kind, body, 0) {
		c.lastFrame.Store(max(1, int64(time.Since(c.began)))) // the clock may be set back
	}
}

// send publishes a frame. It returns false if that failed, for example because the frame is too large.
func (c *call) send(kind string, body []byte, seq int) bool {
	msg := nats.NewMsg(c.reply)
	msg.Header.Set(wire.HeaderFrame, kind)
	if seq > 0 {
		msg.Header.Set(wire.HeaderSeq, strconv.Itoa(seq))
	}
	if kind != wire.FrameChunk || seq%wire.AckEvery == 0 {
		msg.Reply = c.s.inst.pub.streams.ackSubject(c)
	}
	msg.Data = body
	err := c.s.nc.PublishMsg(msg)
	if err != nil {
		c.s.inst.pub.opt.Logger.Debug("a frame was not sent", "frame", kind, "error", err)
	}
	return err == nil
}

// ProgressSink is a jsonrpc.Sink that also takes progress, like the sink of a streaming call.
type ProgressSink interface {
	jsonrpc.Sink
	// Progress passes a JSON-RPC notification on to the caller, if the caller takes frames.
	Progress(notification []byte)
}

// Progress implements ProgressSink.
func (c *call) Progress(notification []byte) {
	if c.stream {
		c.frame(wire.FrameProgress, notification)
	}
}

// notify is Progress for synchronous handlers.
func (c *call) notify(method string, params json.RawMessage) error {
	c.Progress(jsonrpc.AppendRequest(nil, nil, method, params))
	return nil
}

// sendChunks sends an answer that is too large for one message, and ends the call. It owns text. The place and the memory
// of the answer are freed before its end frame is sent, as in leave; letGo returns the memory of text.
func (c *call) sendChunks(text []byte, letGo func()) {
	defer c.finish()
	whole, size := c.chunks(text), len(text)
	letGo()
	c.leave()
	if whole {
		c.send(wire.FrameEnd, fmt.Appendf(nil, `{"length":%d}`, size), 0)
	}
}

// chunks sends text, until the caller goes away.
func (c *call) chunks(text []byte) (whole bool) {
	seq, asked := 0, 0
	size := min(wire.ChunkSize, max(wire.Headroom, int(c.s.nc.MaxPayload())-wire.Headroom))
	for at := 0; at < len(text); at += size {
		seq++
		c.send(wire.FrameChunk, text[at:min(at+size, len(text))], seq)
		if seq%wire.AckEvery != 0 {
			continue
		}
		if asked++; asked < wire.MaxUnacked {
			continue
		}
		if asked--; !c.awaitAck() {
			c.s.inst.pub.opt.Logger.Debug("a caller does not acknowledge a large answer", "extension", c.s.inst.ID(), "sent", at)
			return false
		}
	}
	return true
}

// awaitAck waits until the caller has acknowledged one more part.
func (c *call) awaitAck() bool {
	f := c.flow.Load()
	t := time.NewTimer(wire.AckWait)
	defer t.Stop()
	select {
	case <-f.acks:
		return true
	case <-f.left:
	case <-t.C:
	case <-c.s.opt.Cut:
	case <-c.s.ctx.Done():
	}
	return false
}
