package catalog

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/wire"
)

// ErrNoCatalog means that nothing answers reads of the bucket: no registry has created it yet, or JetStream is not
// available.
var ErrNoCatalog = errors.New("no catalog")

// AllKeys is the filter for the whole bucket.
const AllKeys = ">"

// The size of a page. The server blocks writes to the bucket while it sends a page, and keeps in memory what a slow reader has
// not received, so pages are small: after a restart of NATS, all agents read at the same time.
const (
	pageMessages = 1000
	pageBytes    = 2 << 20
	largePage    = 4 // times as large
)

// Any replica may answer a read, and one that hangs never does. A read without an answer for readTimeout is repeated, up to
// Tries times; another replica probably gets the next request.
const (
	readTimeout  = 1500 * time.Millisecond
	defaultTries = 6
)

// Reader reads the bucket by direct get. That needs no consumer, which agents must not be permitted to create: a consumer can
// deliver into the queue group of any service.
type Reader struct {
	Conn   *nats.Conn
	Prefix wire.Prefix
	Tries  int  // of a read that gets no answer; default 6
	Large  bool // larger pages, for somebody who waits: fewer requests
}

func (r Reader) stream() string    { return "KV_" + r.Prefix.Bucket() }
func (r Reader) directGet() string { return "$JS.API.DIRECT.GET." + r.stream() }
func (r Reader) tries() int        { return cmp.Or(r.Tries, defaultTries) }
func (r Reader) scale() int {
	if r.Large {
		return largePage
	}
	return 1
}
func (r Reader) subject(key string) string {
	return "$KV." + r.Prefix.Bucket() + "." + key
}

// Event reads a message that the server republished. Anything with the permission may publish on that subject, so what the
// server did not write is an error.
func (r Reader) Event(m *nats.Msg) (Change, error) {
	key, _ := strings.CutPrefix(m.Subject, r.Prefix.CatalogEvents()+".")
	if stored := m.Header.Get(headerSubject); stored != "" && stored != r.subject(key) {
		return Change{}, fmt.Errorf("catalog key %.100q: the message is the answer to a read of %.100q, not an event", key, stored)
	}
	return parse(key, m)
}

// Pages reads the messages of the keys that match filter in ascending order, from the sequence from on: the last one of each
// key, and possibly an older one that was replaced while the pages were read. The last pair has the error, if there is one.
func (r Reader) Pages(ctx context.Context, filter string, from uint64) iter.Seq2[[]Change, error] {
	return func(yield func([]Change, error) bool) {
		for {
			page, pending, err := r.page(ctx, filter, from, pageMessages)
			if err != nil {
				yield(nil, err)
				return
			}
			if len(page) == 0 || !yield(page, nil) || pending == 0 {
				return
			}
			from = page[len(page)-1].At.Seq + 1
		}
	}
}

// page reads one page, and returns how many messages follow it.
func (r Reader) page(ctx context.Context, filter string, from uint64, size int) (page []Change, pending int, err error) {
	for try := 1; ; try++ {
		scale := r.scale()
		if try > 1 { // a slow link may not be able to take a large one in time
			scale = 1
		}
		req, err := json.Marshal(map[string]any{
			"next_by_subj": r.subject(filter), "seq": max(from, 1), "batch": scale * size, "max_bytes": scale * pageBytes,
		})
		if err != nil {
			return nil, 0, err
		}
		page, pending, err = r.tryPage(ctx, req)
		if err == nil || try >= r.tries() || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return page, pending, err
		}
	}
}

// tryPage requests a page once, with an inbox of its own, so that late answers to an earlier request are not mixed in.
func (r Reader) tryPage(ctx context.Context, req []byte) (page []Change, pending int, err error) {
	inbox := natsconn.Inbox(r.Conn)
	sub, err := r.Conn.SubscribeSync(inbox)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection, which has no subscriptions
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, 0, err
	}
	if err := r.Conn.PublishRequest(r.directGet(), inbox, req); err != nil {
		return nil, 0, err
	}
	for {
		m, err := nextWithin(ctx, sub, readTimeout)
		if err != nil {
			return nil, 0, r.failed(err)
		}
		switch status := m.Header.Get("Status"); status {
		case "":
			ch, err := r.stored(m)
			if err != nil {
				return nil, 0, err
			}
			page = append(page, ch)
		case "204": // the end of the page
			if pending, err = strconv.Atoi(m.Header.Get("Nats-Num-Pending")); err != nil {
				return nil, 0, r.failed(errors.New("the page ends without Nats-Num-Pending"))
			}
			return page, pending, nil
		case "404": // no message from this sequence on
			return page, 0, nil
		default:
			return nil, 0, r.failed(statusError(m))
		}
	}
}

func nextWithin(ctx context.Context, sub *nats.Subscription, d time.Duration) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return sub.NextMsgWithContext(ctx)
}

// Last reads the last message of a key, or of all keys with AllKeys. ok is false if there is no message.
func (r Reader) Last(ctx context.Context, key string) (ch Change, ok bool, err error) {
	subject, data := r.directGet()+"."+r.subject(key), []byte(nil)
	if key == AllKeys {
		subject = r.directGet()
		if data, err = json.Marshal(map[string]string{"last_by_subj": r.subject(key)}); err != nil {
			return ch, false, err
		}
	}
	m, err := r.request(ctx, subject, data)
	switch {
	case err != nil:
		return ch, false, r.failed(err)
	case m.Header.Get("Status") == "404":
		return ch, false, nil
	case m.Header.Get("Status") != "":
		return ch, false, r.failed(statusError(m))
	}
	ch, err = r.stored(m)
	return ch, err == nil, err
}

// request repeats a request as long as it gets no answer.
func (r Reader) request(ctx context.Context, subject string, data []byte) (m *nats.Msg, err error) {
	for range r.tries() {
		tryCtx, cancel := context.WithTimeout(ctx, readTimeout)
		m, err = r.Conn.RequestWithContext(tryCtx, subject, data)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return m, err
}

// Extent returns the first message of the bucket and the number of messages.
func (r Reader) Extent(ctx context.Context) (first Stamp, messages int, err error) {
	page, pending, err := r.page(ctx, AllKeys, 1, 1)
	if err != nil || len(page) == 0 {
		return Stamp{}, 0, err
	}
	return page[0].At, len(page) + pending, nil
}

// stored reads a message that direct get returned.
func (r Reader) stored(m *nats.Msg) (Change, error) {
	key, ok := strings.CutPrefix(m.Header.Get(headerSubject), r.subject(""))
	if !ok {
		return Change{}, r.failed(fmt.Errorf("the message is from the subject %.200q", m.Header.Get(headerSubject)))
	}
	return parse(key, m)
}

func (r Reader) failed(err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("%w: nothing answers for the bucket %s: no registry has created it, or this server or account does not reach its JetStream (docs/operations.md, Leaf nodes)", ErrNoCatalog, r.Prefix.Bucket())
	}
	return fmt.Errorf("reading the catalog %s: %w", r.Prefix.Bucket(), err)
}

func statusError(m *nats.Msg) error {
	return fmt.Errorf("JetStream: %s %s", m.Header.Get("Status"), m.Header.Get("Description"))
}
