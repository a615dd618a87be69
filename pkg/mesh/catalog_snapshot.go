package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
)

// The size of one page of a snapshot. The server holds writes to the bucket back while it sends a page, so
// pages are kept small rather than few.
const (
	pageMessages = 1000
	pageBytes    = 2 << 20
)

// Any replica may answer, a frozen or a dying one too, which never does: who hears nothing for pageSilence asks
// again, and most likely somebody else, up to pageTries times.
const (
	pageSilence = 1500 * time.Millisecond
	pageTries   = 6
)

// A snapshot is read by direct get, which any replica answers and which needs no consumer: creating consumers
// is a right that agents must not have, since a consumer can deliver into anybody's queue group.
func (c *Catalog) directGet() string { return "$JS.API.DIRECT.GET." + c.stream() }
func (c *Catalog) stream() string    { return "KV_" + c.prefix.Bucket() }
func (c *Catalog) keyPrefix() string { return "$KV." + c.prefix.Bucket() + "." }

// scan reads the messages of the keys that match filter from sequence from on, in ascending order: the last of each key
// (and maybe an older one that was replaced meanwhile). It decodes a page while the server sends the next ones.
func (c *Catalog) scan(ctx context.Context, filter string, from uint64) (changes []change, through stamp, err error) {
	var pages [][]change
	var decoding sync.WaitGroup
	defer decoding.Wait()
	for more := true; more; {
		var page []change
		page, more, err = c.page(ctx, filter, from)
		if err != nil {
			return nil, through, err
		}
		if len(page) == 0 {
			break
		}
		pages = append(pages, page)
		decoding.Go(func() { c.decode(page) }) // ends when the page is decoded; scan waits for it
		through = page[len(page)-1].at
		from = through.seq + 1
	}
	decoding.Wait()
	return slices.Concat(pages...), through, nil
}

// decode decodes in place the changes that are not decoded yet.
func (c *Catalog) decode(changes []change) {
	for i := range changes {
		if err := changes[i].decode(); err != nil {
			c.opts.Logger.Warn("a document of the catalog cannot be read", "error", err)
		}
	}
}

// page reads the page from sequence from on.
func (c *Catalog) page(ctx context.Context, filter string, from uint64) (page []change, more bool, err error) {
	req, err := json.Marshal(map[string]any{
		"next_by_subj": c.keyPrefix() + filter, "seq": max(from, 1), "batch": pageMessages, "max_bytes": pageBytes,
	})
	if err != nil {
		return nil, false, err
	}
	for try := 1; ; try++ {
		page, pending, err := c.askPage(ctx, req)
		if err == nil || try == pageTries || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return page, pending > 0, err
		}
	}
}

// askPage asks once, on an inbox of its own: what an earlier question still brings must not mix in.
func (c *Catalog) askPage(ctx context.Context, req []byte) (page []change, pending int, err error) {
	inbox := natsconn.Inbox(c.nc)
	sub, err := c.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails on a closed connection only, which has none
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, 0, err
	}
	if err := c.nc.PublishRequest(c.directGet(), inbox, req); err != nil {
		return nil, 0, err
	}
	return c.readPage(ctx, sub)
}

// readPage reads the answers to one page's request, up to the server's end mark, which tells how many messages follow.
func (c *Catalog) readPage(ctx context.Context, sub *nats.Subscription) (page []change, pending int, err error) {
	for {
		m, err := nextWithin(ctx, sub, pageSilence)
		if errors.Is(err, nats.ErrNoResponders) {
			return nil, 0, c.noCatalog()
		}
		if err != nil {
			return nil, 0, fmt.Errorf("reading the catalog %s: %w", c.prefix.Bucket(), err)
		}
		switch status := m.Header.Get("Status"); status {
		case "":
			ch, err := c.stored(m)
			if err != nil {
				return nil, 0, err
			}
			page = append(page, ch)
		case "204": // end of batch
			pending, err := strconv.Atoi(m.Header.Get("Nats-Num-Pending"))
			if err != nil {
				return nil, 0, fmt.Errorf("reading the catalog %s: the page ends without Nats-Num-Pending", c.prefix.Bucket())
			}
			return page, pending, nil
		case "404": // no message at or after the sequence
			return page, 0, nil
		default:
			return nil, 0, fmt.Errorf("reading the catalog %s: JetStream says %s %s",
				c.prefix.Bucket(), status, m.Header.Get("Description"))
		}
	}
}

func nextWithin(ctx context.Context, sub *nats.Subscription, d time.Duration) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return sub.NextMsgWithContext(ctx)
}

func (c *Catalog) noCatalog() error {
	return fmt.Errorf("%w: nothing answers for the bucket %s; no registry has run here, or JetStream is down",
		ErrNoCatalog, c.prefix.Bucket())
}

// requestPatiently asks again while nobody answers.
func (c *Catalog) requestPatiently(ctx context.Context, subject string, data []byte) (m *nats.Msg, err error) {
	for range pageTries {
		rctx, cancel := context.WithTimeout(ctx, pageSilence)
		m, err = c.nc.RequestWithContext(rctx, subject, data)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return m, err
}

// extent is the stamp of the bucket's first message, and the number of all of them.
func (c *Catalog) extent(ctx context.Context) (first stamp, messages int, err error) {
	req, err := json.Marshal(map[string]any{"next_by_subj": c.keyPrefix() + ">", "seq": 1, "batch": 1})
	if err != nil {
		return stamp{}, 0, err
	}
	page, pending, err := c.askPage(ctx, req)
	if err != nil || len(page) == 0 {
		return stamp{}, 0, err
	}
	return page[0].at, len(page) + pending, nil
}

// newest is the stamp of the bucket's newest message; zero for an empty bucket.
func (c *Catalog) newest(ctx context.Context) (stamp, error) {
	req, err := json.Marshal(map[string]string{"last_by_subj": c.keyPrefix() + ">"})
	if err != nil {
		return stamp{}, err
	}
	m, err := c.requestPatiently(ctx, c.directGet(), req)
	switch {
	case err != nil:
		return stamp{}, err
	case m.Header.Get("Status") == "404":
		return stamp{}, nil
	}
	ch, err := c.stored(m)
	return ch.at, err
}

// stored reads a message as direct get sends it.
func (c *Catalog) stored(m *nats.Msg) (change, error) {
	key, ok := strings.CutPrefix(m.Header.Get(headerSubject), c.keyPrefix())
	if !ok {
		return change{}, fmt.Errorf("message of %q is not of the bucket %s",
			m.Header.Get(headerSubject), c.prefix.Bucket())
	}
	return parseChange(key, m)
}

// Headers that the server puts on a stored or republished message.
const (
	headerSubject  = "Nats-Subject"
	headerSequence = "Nats-Sequence"
	headerTime     = "Nats-Time-Stamp"
	headerMarker   = "Nats-Marker-Reason" // an expiry
	headerKVOp     = "KV-Operation"       // DEL or PURGE
)

// parseChange reads a stored or republished message. The server wrote the headers, but on the republish
// subject anybody with the permission may publish; what does not parse is an error.
func parseChange(key string, m *nats.Msg) (change, error) {
	seq, err := strconv.ParseUint(m.Header.Get(headerSequence), 10, 64)
	if err != nil {
		return change{}, fmt.Errorf("catalog key %q: no %s", key, headerSequence)
	}
	ts, err := time.Parse(time.RFC3339Nano, m.Header.Get(headerTime))
	if err != nil {
		return change{}, fmt.Errorf("catalog key %q: no %s", key, headerTime)
	}
	ch := change{key: key, at: stamp{seq, ts.UnixNano()}}
	if m.Header.Get(headerKVOp) == "" && m.Header.Get(headerMarker) == "" {
		ch.value = m.Data
		if ch.value == nil {
			ch.value = []byte{}
		}
	}
	return ch, nil
}

// streamCreated asks JetStream when the bucket's stream was made.
func (c *Catalog) streamCreated(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	m, err := c.nc.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+c.stream(), nil)
	if err != nil {
		return "", err
	}
	var info struct {
		Created time.Time `json:"created"`
	}
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return "", err
	}
	if info.Created.IsZero() {
		return "", ErrNoCatalog
	}
	return info.Created.UTC().Format(time.RFC3339Nano), nil
}
