package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/internal/wire"
)

// request is one JSON-RPC request to an extension or a bridge.
type request struct {
	nc      *nats.Conn
	subject string
	method  string
	params  json.RawMessage
	acks    func(subject string) bool // reports whether chunks may be acknowledged there
}

// The limits of chunked answers. Parsing takes several times their size.
const (
	maxLargeHandshakes = 1
	maxLargeAnswer     = 16 << 20
	maxPendingChunks   = 24 << 20 // a sender may be 2 MiB ahead of the acknowledgements, an older one 8
	largeTimeout       = 30 * time.Second
	silenceTimeout     = 5 * time.Second // an instance sends a frame every 2 s
)

// retryNoResponders are the pauses before a request without responders is repeated: a subscription takes a moment to
// reach all servers of a cluster.
var retryNoResponders = [...]time.Duration{10 * time.Millisecond, 40 * time.Millisecond, 160 * time.Millisecond}

func (q request) body() []byte { return jsonrpc.AppendRequest(nil, []byte("1"), q.method, q.params) }

// send returns the raw result. Without responders it tries a few times.
func (q request) send(ctx context.Context, timeout time.Duration) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body := q.body()
	var m *nats.Msg
	var err error
	for try := 0; ; try++ {
		m, err = natsconn.Request(ctx, q.nc, q.subject, body)
		if !errors.Is(err, nats.ErrNoResponders) || try == len(retryNoResponders) || !pause.For(ctx, retryNoResponders[try]) {
			break
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("no answer on %s within %v: %w", q.subject, timeout, err)
	}
	if err != nil {
		return nil, fmt.Errorf("request to %s: %w", q.subject, err)
	}
	return q.result(m.Data)
}

func (q request) result(text []byte) (json.RawMessage, error) {
	if !utf8.Valid(text) { // the catalog is, and a reader may refuse what is not
		text = bytes.ToValidUTF8(text, []byte("\uFFFD"))
	}
	reply, err := jsonrpc.ParseReply(text)
	if err != nil {
		return nil, fmt.Errorf("the answer on %s is not JSON-RPC: %w", q.subject, err)
	}
	result, err := reply.Result()
	if err != nil {
		return nil, fmt.Errorf("the answer on %s is an error: %w", q.subject, err)
	}
	return result, nil
}

// sendChunked is send for an answer that does not fit into one message (docs/protocol.md, "Streaming").
func (q request) sendChunked(ctx context.Context, timeout time.Duration) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	inbox := natsconn.Inbox(q.nc)
	sub, err := q.nc.SubscribeSync(inbox)
	if err == nil {
		defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
		err = sub.SetPendingLimits(-1, maxPendingChunks)
	}
	if err == nil {
		err = q.nc.PublishMsg(&nats.Msg{Subject: q.subject, Reply: inbox, Data: q.body(), Header: nats.Header{
			wire.HeaderStream: {"1"}, wire.HeaderTimeout: {strconv.FormatInt(timeout.Milliseconds(), 10)}}})
	}
	if err != nil {
		return nil, fmt.Errorf("request to %s: %w", q.subject, err)
	}
	a := assembly{request: q}
	for {
		m, err := nextWithin(ctx, sub, silenceTimeout)
		if err != nil {
			return nil, fmt.Errorf("the answer on %s stopped after %d bytes: %w", q.subject, len(a.text), err)
		}
		if text, done, err := a.add(m); done || err != nil {
			if err != nil {
				return nil, err
			}
			return q.result(text)
		}
	}
}

func nextWithin(ctx context.Context, sub *nats.Subscription, d time.Duration) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return sub.NextMsgWithContext(ctx)
}

// assembly collects the frames of an answer.
type assembly struct {
	request
	text   []byte
	chunks int
}

// add handles one frame; done is true when the answer is complete.
func (a *assembly) add(m *nats.Msg) (text []byte, done bool, err error) {
	switch m.Header.Get(wire.HeaderFrame) {
	case "":
		if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
			return nil, false, fmt.Errorf("request to %s: %w", a.subject, nats.ErrNoResponders)
		}
		return m.Data, true, nil
	case "chunk":
		return nil, false, a.chunk(m)
	case "end":
		var end struct {
			Length int `json:"length"`
		}
		if json.Unmarshal(m.Data, &end) != nil || end.Length != len(a.text) {
			return nil, false, fmt.Errorf("part of the answer on %s was lost: received %d bytes, expected %.100s", a.subject, len(a.text), m.Data)
		}
		return a.text, true, nil
	}
	return nil, false, nil // accepted, progress or keepalive
}

func (a *assembly) chunk(m *nats.Msg) error {
	a.chunks++
	switch {
	case m.Header.Get(wire.HeaderSeq) != strconv.Itoa(a.chunks):
		return fmt.Errorf("part of the answer on %s was lost: received chunk %.20q instead of %d", a.subject, m.Header.Get(wire.HeaderSeq), a.chunks)
	case len(a.text)+len(m.Data) > maxLargeAnswer:
		return fmt.Errorf("the answer on %s exceeds the limit of %d bytes", a.subject, maxLargeAnswer)
	}
	a.text = append(a.text, m.Data...)
	if m.Reply == "" {
		return nil
	}
	if !a.acks(m.Reply) {
		return fmt.Errorf("a chunk of the answer on %s has the reply subject %.128q, which is not an acknowledgement subject", a.subject, m.Reply)
	}
	return a.nc.Publish(m.Reply, nil)
}
