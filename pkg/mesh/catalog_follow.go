package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/wire"
)

// How a follower works (docs/protocol.md, "Following the catalog"). The bucket's stream republishes every message on core
// NATS. A follower subscribes to that, reads a snapshot, and applies the events that follow it. Sequences are contiguous
// over the whole bucket, so a gap is a lost event, and the messages of the gap are read by direct get. A KV watcher would be
// less code, but it is a consumer, and it stalls for 10 to 20 s if its server fails.

const (
	eventBuffer   = 8192 // events that wait while a snapshot is read; more is a gap
	checkInterval = 25 * time.Second

	// keepOld is how long a follower keeps what a recreated or purged bucket lacks: the registry is writing it again.
	// A purge is detected by a check, so that both together are less than a minute.
	keepOld  = 15 * time.Second
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second

	// catchUpWindow is the longest time without an event after which only the messages of a gap are read. Markers of deleted
	// keys stay in the bucket much longer than that; after a longer time the whole bucket is read again.
	catchUpWindow = time.Minute
)

// resync is what a follower has to read before it may apply events again.
type resync int

const (
	upToDate resync = iota
	readTail        // the messages after the newest one
	readAll         // a whole snapshot
)

// follower is the state of one Run, used by its goroutine only.
type follower struct {
	*Catalog
	resync  resync
	tries   int
	retry   *time.Timer   // fires when to read
	pending catalog.Stamp // the newest event since it is not up to date
	waiting bool          // that there is no catalog was logged
	whole   *time.Timer   // fires when to read a whole snapshot because what was kept is old enough to be removed
	due     bool          // whole is set
}

// Run fills the catalog and keeps it up to date until ctx ends; then it returns nil. It waits for a bucket that does not
// exist yet, and continues after every failure of the network, of JetStream and of the registries. Its error is that the
// connection was closed. A Catalog has at most one Run at a time.
func (c *Catalog) Run(ctx context.Context) error {
	events := make(chan *nats.Msg, eventBuffer)
	status := c.reader.Conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer c.reader.Conn.RemoveStatusListener(status)
	sub, err := c.reader.Conn.ChanSubscribe(c.reader.Prefix.CatalogEvents()+".>", events)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection, which has no subscriptions
	f := &follower{Catalog: c, retry: time.NewTimer(0), whole: time.NewTimer(time.Hour)}
	defer f.retry.Stop()
	f.whole.Stop()
	defer f.whole.Stop()
	f.need(readAll, true)
	check := time.NewTimer(jitter(c.check))
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-status:
			if s == nats.CLOSED {
				return nats.ErrConnectionClosed
			}
			f.need(readAll, true) // events were lost while the connection was down
		case <-f.retry.C:
			f.read(ctx)
		case m := <-events:
			f.event(m)
		case <-check.C:
			f.verify(ctx)
			check.Reset(jitter(c.check))
		case <-f.whole.C:
			f.due = false
			f.need(readAll, true)
		}
	}
}

// need schedules a read, immediately or after a pause that grows with the tries.
func (f *follower) need(r resync, now bool) {
	f.resync = max(f.resync, r)
	if now {
		f.tries = 0
		f.retry.Reset(0)
		return
	}
	f.retry.Reset(jitter(min(retryMax, retryMin<<min(f.tries, 10))))
	f.tries++
}

// event handles one republished message.
func (f *follower) event(m *nats.Msg) {
	received, err := f.reader.Event(m)
	if err != nil { // of a publisher that is not the server
		f.opts.Logger.Warn("ignored a message on the catalog's subject", "error", err)
		return
	}
	ch := change{Change: received}
	if f.resync != upToDate {
		if f.pending.Time < ch.At.Time {
			f.pending = ch.At
		}
		if f.tries > 3 { // the bucket works again: do not wait for the end of the pause
			f.need(f.resync, true)
		}
		return
	}
	step := f.data.copy.Step(ch.At) // only this goroutine writes to data
	switch {
	case step == catalog.Other, step == catalog.Next && f.data.otherID(ch):
		f.need(readAll, true)
	case step == catalog.Next:
		f.take([]change{ch}, time.Now())
	case step == catalog.Gap:
		f.pending = ch.At
		if f.Age() > catchUpWindow {
			f.need(readAll, true)
		} else {
			f.need(readTail, true)
		}
	}
}

// otherID reports whether a change is a registry's note that the bucket was recreated.
func (d *catalogData) otherID(ch change) bool {
	id := epochID(ch)
	return id != "" && d.id != "" && id != d.id
}

// read reads what the follower needs. If that fails, it tries again later.
func (f *follower) read(ctx context.Context) {
	if f.resync == upToDate {
		return
	}
	var err error
	if f.resync == readAll {
		err = f.loadAll(ctx)
	} else {
		err = f.loadTail(ctx)
	}
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		if !f.waiting {
			f.opts.Logger.Warn("waiting for the catalog", "bucket", f.reader.Prefix.Bucket(), "error", err)
			f.waiting = true
		}
		f.need(f.resync, false)
		return
	}
	if f.waiting {
		f.opts.Logger.Info("the catalog is back", "bucket", f.reader.Prefix.Bucket())
		f.waiting = false
	}
	if !f.data.keepUntil.IsZero() {
		f.wholeAfter(time.Until(f.data.keepUntil) + time.Millisecond)
	}
	f.resync = upToDate
	if last := f.data.copy.Last(); f.pending.Seq > last.Seq && f.pending.Time > last.Time && f.tries < catalog.BehindTries {
		f.need(readTail, false) // the replica that answered lacks an event that was received
		return
	}
	f.pending, f.tries = catalog.Stamp{}, 0
}

// verify compares the copy with the bucket, to find lost events that no later event followed, and purges, which are not
// republished. A failed check is repeated by the next one.
func (f *follower) verify(ctx context.Context) {
	if f.resync != upToDate {
		return
	}
	newest, _, err := f.reader.Last(ctx, catalog.AllKeys)
	var first catalog.Stamp
	var messages int
	if err == nil {
		first, messages, err = f.reader.Extent(ctx)
	}
	if err != nil {
		if !errors.Is(err, ErrNoCatalog) && ctx.Err() == nil {
			f.opts.Logger.Debug("checking the catalog", "error", err)
		}
		return
	}
	switch f.data.copy.Step(newest.At) {
	case catalog.Other:
		f.need(readAll, true)
	case catalog.Next, catalog.Gap:
		f.need(readTail, true)
	}
	if f.data.copy.Purged(first, messages, newest.At) { // the registry may be about to write everything again
		f.wholeAfter(f.keep)
	}
}

// wholeAfter schedules the reading of a whole snapshot, unless one is scheduled already.
func (f *follower) wholeAfter(d time.Duration) {
	if !f.due {
		f.due = true
		f.whole.Reset(d)
	}
}

// loader reads the bucket of a Catalog.
type loader struct {
	reader catalog.Reader
	opts   CatalogOptions
}

// scan reads the messages of the keys that match filter from the sequence from on. It decodes a page while the server sends the
// next ones.
func (l *loader) scan(ctx context.Context, filter string, from uint64) (changes []change, through catalog.Stamp, err error) {
	var pages [][]change
	var decoding sync.WaitGroup
	defer decoding.Wait()
	for read, err := range l.reader.Pages(ctx, filter, from) {
		if err != nil {
			return nil, through, err
		}
		page := make([]change, len(read))
		for i := range read {
			page[i].Change = read[i]
		}
		pages = append(pages, page)
		decoding.Go(func() { l.decode(page) }) // ends when the page is decoded; scan waits for it
		through = page[len(page)-1].At
	}
	decoding.Wait()
	return slices.Concat(pages...), through, nil
}

// decode decodes in place the changes that are not decoded yet.
func (l *loader) decode(changes []change) {
	for i := range changes {
		if err := changes[i].decode(); err != nil {
			l.opts.Logger.Warn("a document of the catalog cannot be read", "error", err)
		}
		if l.opts.NoSchemas {
			changes[i].dropSchemas()
		}
	}
}

// loadKeys reads single keys, of which some may not exist.
func (l *loader) loadKeys(ctx context.Context, keys ...string) (changes []change, through catalog.Stamp, err error) {
	for _, key := range keys {
		ch, ok, err := l.reader.Last(ctx, key)
		if err != nil {
			return nil, through, err
		}
		if !ok {
			continue
		}
		changes = append(changes, change{Change: ch})
		if ch.At.Seq > through.Seq {
			through = ch.At
		}
	}
	return changes, through, nil
}

// loadKinds reads the keys of some kinds, and the registries' own keys.
func (c *Catalog) loadKinds(ctx context.Context, kinds []string) error {
	changes, through, err := c.loadKeys(ctx, wire.KeyLease, wire.KeyEpoch)
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		some, last, err := c.scan(ctx, kind+".>", 1)
		if err != nil {
			return err
		}
		changes = append(changes, some...)
		if last.Seq > through.Seq {
			through = last
		}
	}
	c.takeAll(changes, through, catalogID(changes))
	return nil
}

// loadAll reads the whole bucket and applies what differs.
func (c *Catalog) loadAll(ctx context.Context) error {
	changes, through, err := c.scan(ctx, catalog.AllKeys, 1)
	if err != nil {
		return err
	}
	c.takeAll(changes, through, catalogID(changes))
	return nil
}

// takeAll applies what differs from a whole snapshot. through is the snapshot's last message, id identifies its stream, if
// that is known. What another stream lacks is kept for a while, so that calls by name work until the registry has written it
// again.
func (c *Catalog) takeAll(changes []change, through catalog.Stamp, id string) {
	c.decode(changes)
	snapshot := make(map[string]catalog.Stamp, len(changes))
	for _, ch := range changes {
		snapshot[ch.Key] = ch.At
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &c.data
	var events []Event
	if d.copy.Last() != (catalog.Stamp{}) && (id != "" && d.id != "" && id != d.id || d.copy.Differs(snapshot, through)) {
		d.copy.Replace(snapshot)
		d.id, d.revision = "", 0
		if c.keep > 0 {
			d.keepUntil = time.Now().Add(c.keep)
		}
		events = append(events, Event{Op: opSynced})
	} else if !time.Now().Before(d.keepUntil) {
		d.keepUntil = time.Time{}
	}
	missing := d.copy.Missing(snapshot, through, !d.keepUntil.IsZero())
	if id != "" {
		d.id = id
	}
	for _, ch := range missing {
		if ev, ok := d.apply(change{Change: ch}); ok {
			events = append(events, ev)
		}
		d.copy.DropMarker(ch.Key)
	}
	for _, ch := range changes {
		if snapshot[ch.Key] != ch.At {
			continue // replaced while the snapshot was read
		}
		if ev, ok := d.apply(ch); ok {
			events = append(events, ev)
		}
	}
	d.seenAt(through)
	select {
	case <-c.ready:
	default:
		close(c.ready)
		events = []Event{{Op: opSynced}}
	}
	for i := range events {
		if events[i].Op == opSynced {
			events[i].Revision = d.revision
		}
	}
	c.publish(events)
}

// loadTail reads the messages after the newest one.
func (c *Catalog) loadTail(ctx context.Context) error {
	changes, through, err := c.scan(ctx, catalog.AllKeys, c.data.copy.Last().Seq+1)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(changes, c.data.otherID) {
		return c.loadAll(ctx)
	}
	c.take(changes, written(through))
	return nil
}

// take applies changes in their order and sends the events to the watchers. seen is when they showed that the catalog is
// maintained.
func (c *Catalog) take(changes []change, seen time.Time) {
	c.decode(changes)
	c.mu.Lock()
	defer c.mu.Unlock()
	var events []Event
	for _, ch := range changes {
		if ev, ok := c.data.apply(ch); ok {
			events = append(events, ev)
		}
		if id := epochID(ch); id != "" {
			c.data.id = id
		}
	}
	if len(changes) > 0 && seen.After(c.data.seen) {
		c.data.seen = seen
	}
	c.publish(events)
}

// catalogID returns the creation time of the stream, which the registry writes to epoch.registry; "" until it has.
func catalogID(changes []change) string {
	for _, ch := range changes {
		if id := epochID(ch); id != "" {
			return id
		}
	}
	return ""
}

// epochID returns the catalog's id if ch is epoch.registry and has one.
func epochID(ch change) string {
	var epoch struct {
		CatalogID string `json:"catalog_id"`
	}
	if ch.Key != wire.KeyEpoch || ch.Deleted() || json.Unmarshal(ch.Value, &epoch) != nil {
		return ""
	}
	return epoch.CatalogID
}

// jitter returns d ± 10 %, so that the requests of many followers are spread.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + time.Duration(rand.Int64N(int64(d)/5+1))
}
