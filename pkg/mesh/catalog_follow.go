package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
)

// How a follower works (docs/protocol.md, "Following the catalog"). The bucket's stream republishes every
// message on core NATS. A follower subscribes to that, then reads a snapshot, then takes in the events as
// they come. Sequences are contiguous over the whole bucket, so a hole in them is a lost event, and what is
// behind the hole is read by direct get. A KV watcher would be less code, but it is a consumer, and one whose
// host dies stalls its watchers for 10 to 20 s.

const (
	eventBuffer   = 8192 // events that wait while a snapshot is read; more is a hole, found and filled
	checkInterval = 25 * time.Second

	// keepOld is how long a follower keeps what a bucket lacks that was made again or purged: the registry is writing it.
	// A purge is found by a check, so that both together are under a minute.
	keepOld  = 15 * time.Second
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second

	// behindTries bounds how often a snapshot is read again because an event promised more than the bucket
	// has. Replicas catch up within that; a forged event must not keep a follower busy.
	behindTries = 5

	// catchUpWindow is how old the last event may be for a hole to be filled from its edge on. Markers of
	// deleted keys live much longer in the bucket; after a longer silence the whole is read again.
	catchUpWindow = time.Minute
)

// debt is what a follower owes before it may apply events again.
type debt int

const (
	owesNothing debt = iota
	owesTail         // the messages behind the newest that is in
	owesAll          // a whole snapshot
)

// follower is the state of one Run, used by its goroutine only.
type follower struct {
	*Catalog
	debt    debt
	tries   int
	retry   *time.Timer // fires when the debt is to be paid
	pending stamp       // the newest event that was seen while in debt
	told    bool        // that there is no catalog has been logged
	whole   *time.Timer // fires when a whole snapshot is due: the old copy has been kept for long enough
	waits   bool        // whole is set
}

// Run fills the catalog and keeps it up to date until ctx ends; then it returns nil. It waits for a bucket
// that is not there, and through every fault of the network, JetStream and the registries. The error is a
// connection that was closed for good. A Catalog has one Run at a time.
func (c *Catalog) Run(ctx context.Context) error {
	events := make(chan *nats.Msg, eventBuffer)
	status := c.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer c.nc.RemoveStatusListener(status)
	sub, err := c.nc.ChanSubscribe(c.prefix.CatalogEvents()+".>", events)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails on a closed connection only, which has none
	f := &follower{Catalog: c, retry: time.NewTimer(0), whole: time.NewTimer(time.Hour)}
	defer f.retry.Stop()
	f.whole.Stop()
	defer f.whole.Stop()
	f.owe(owesAll, true)
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
			f.owe(owesAll, true) // events went by while the connection was away
		case <-f.retry.C:
			f.pay(ctx)
		case m := <-events:
			f.event(m)
		case <-check.C:
			f.verify(ctx)
			check.Reset(jitter(c.check))
		case <-f.whole.C:
			f.waits = false
			f.owe(owesAll, true)
		}
	}
}

// owe notes a debt, and has it paid at once or, if not now, after a pause that grows with the tries.
func (f *follower) owe(d debt, now bool) {
	f.debt = max(f.debt, d)
	if now {
		f.tries = 0
		f.retry.Reset(0)
		return
	}
	f.retry.Reset(jitter(min(retryMax, retryMin<<min(f.tries, 10))))
	f.tries++
}

// event takes in one republished message.
func (f *follower) event(m *nats.Msg) {
	key, _ := strings.CutPrefix(m.Subject, f.prefix.CatalogEvents()+".")
	if stored := m.Header.Get(headerSubject); stored != "" && stored != "$KV."+f.prefix.Bucket()+"."+key {
		// Not republished: a user of this account directed the answer to a read of another key here.
		f.opts.Logger.Debug("ignored a message on the catalog's subject: it is of another key", "key", key, "stored", stored)
		return
	}
	ch, err := parseChange(key, m)
	if err != nil {
		f.opts.Logger.Warn("ignored a message on the catalog's subject", "error", err)
		return
	}
	last := f.data.last // only this goroutine writes it
	switch {
	case f.debt != owesNothing:
		if f.pending.ts < ch.at.ts {
			f.pending = ch.at
		}
		if f.tries > 3 { // the bucket lives again: no need to sit the pause out
			f.owe(f.debt, true)
		}
	case f.data.recreated(ch.at):
		f.owe(owesAll, true)
	case ch.at.seq <= last.seq: // in by the snapshot
	case ch.at.seq == last.seq+1 && f.otherID(ch):
		f.owe(owesAll, true)
	case ch.at.seq == last.seq+1:
		f.take([]change{ch}, time.Now())
	default:
		f.pending = ch.at
		d := owesTail
		if f.Age() > catchUpWindow {
			d = owesAll
		}
		f.owe(d, true)
	}
}

// otherID reports a registry's word that the bucket is another than the one that is in.
func (c *Catalog) otherID(ch change) bool {
	id := epochID(ch)
	return id != "" && c.data.id != "" && id != c.data.id
}

// pay reads what is owed. A failure leaves the debt and tries again later.
func (f *follower) pay(ctx context.Context) {
	if f.debt == owesNothing {
		return
	}
	var err error
	if f.debt == owesAll {
		err = f.loadAll(ctx)
	} else {
		err = f.loadTail(ctx)
	}
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		if !f.told {
			f.opts.Logger.Warn("waiting for the catalog", "bucket", f.prefix.Bucket(), "error", err)
			f.told = true
		}
		f.owe(f.debt, false)
		return
	}
	if f.told {
		f.opts.Logger.Info("the catalog is back", "bucket", f.prefix.Bucket())
		f.told = false
	}
	if !f.data.keepUntil.IsZero() {
		f.wholeAfter(time.Until(f.data.keepUntil) + time.Millisecond)
	}
	f.debt = owesNothing
	if f.pending.seq > f.data.last.seq && f.pending.ts > f.data.last.ts && f.tries < behindTries {
		f.owe(owesTail, false) // a replica answered that is behind what we have seen
		return
	}
	f.pending, f.tries = stamp{}, 0
}

// verify compares with the bucket, for changes that no event has shown: lost events, and purges, which are republished to
// nobody. It fails where JetStream is away, which is no news.
func (f *follower) verify(ctx context.Context) {
	if f.debt != owesNothing {
		return
	}
	at, err := f.newest(ctx)
	var first stamp
	var messages int
	if err == nil {
		first, messages, err = f.extent(ctx)
	}
	if err != nil {
		if !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, ErrNoCatalog) && ctx.Err() == nil {
			f.opts.Logger.Debug("checking the catalog", "error", err)
		}
		return
	}
	switch {
	case f.data.recreated(at):
		f.owe(owesAll, true)
	case at.seq > f.data.last.seq:
		f.owe(owesTail, true)
	}
	if f.data.purged(first, messages, at) { // the registry may be about to write it all again
		f.wholeAfter(f.keep)
	}
}

// wholeAfter has a whole snapshot read after d, unless one is to be read already.
func (f *follower) wholeAfter(d time.Duration) {
	if !f.waits {
		f.waits = true
		f.whole.Reset(d)
	}
}

// allKeys is the filter of a scan that reads everything.
const allKeys = ">"

// loadKinds reads the keys of some kinds, and those of the registries.
func (c *Catalog) loadKinds(ctx context.Context, kinds []string) error {
	var changes []change
	var through stamp
	for _, kind := range kinds {
		some, last, err := c.scan(ctx, kind+".>", 1)
		if err != nil {
			return err
		}
		changes = append(changes, some...)
		if last.seq > through.seq {
			through = last
		}
	}
	for _, key := range []string{wire.KeyLease, wire.KeyEpoch} {
		ch, ok, err := c.lastOf(ctx, key)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		changes = append(changes, ch)
		if ch.at.seq > through.seq {
			through = ch.at
		}
	}
	c.takeAll(changes, through, c.catalogID(ctx, changes))
	return nil
}

// loadAll reads the whole bucket and takes in what differs.
func (c *Catalog) loadAll(ctx context.Context) error {
	changes, through, err := c.scan(ctx, allKeys, 1)
	if err != nil {
		return err
	}
	c.takeAll(changes, through, c.catalogID(ctx, changes))
	return nil
}

// takeAll takes in what differs from a whole snapshot, which reaches up to through, of the stream with this id, if
// that is known. What another stream lacks is kept for a while: until the registry has written all of it, calls by name
// go on.
func (c *Catalog) takeAll(changes []change, through stamp, id string) {
	c.decode(changes)
	snapshot := make(map[string]change, len(changes))
	for _, ch := range changes {
		snapshot[ch.key] = ch
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var events []Event
	if c.isOther(id, changes, snapshot, through) {
		c.data.replace(snapshot)
		if c.keep > 0 {
			c.data.keepUntil = time.Now().Add(c.keep)
		}
		events = append(events, Event{Op: opSynced})
	} else if !time.Now().Before(c.data.keepUntil) {
		c.data.keepUntil = time.Time{}
	}
	clear(c.data.own)
	clear(c.data.markers)
	missing := c.data.missing(snapshot, through)
	if id != "" {
		c.data.id = id
	}
	for _, ch := range append(missing, changes...) {
		if s, ok := snapshot[ch.key]; ok {
			if s.at != ch.at {
				continue // replaced while the snapshot was read
			}
			ch = s
		}
		if ev, ok := c.data.apply(ch); ok {
			events = append(events, ev)
		}
	}
	for _, ch := range missing {
		delete(c.data.markers, ch.key)
	}
	c.heardAt(through)
	select {
	case <-c.ready:
	default:
		close(c.ready)
		events = []Event{{Op: opSynced}}
	}
	for i := range events {
		if events[i].Op == opSynced {
			events[i].Revision = c.data.revision
		}
	}
	c.publish(events)
}

// isOther reports whether a snapshot is of another stream than what is in, or than some of that: behind a tail that was
// read just when the bucket had been made anew, the newest message is of the new one, and the rest is not.
func (c *Catalog) isOther(id string, changes []change, snapshot map[string]change, through stamp) bool {
	if c.data.last == (stamp{}) {
		return false
	}
	if id != "" && c.data.id != "" && id != c.data.id {
		return true
	}
	for _, ch := range changes {
		if c.data.recreated(ch.at) {
			return true
		}
	}
	for key, at := range c.data.stamps {
		there := through // a key that is not in it was deleted by then
		if ch, ok := snapshot[key]; ok {
			there = ch.at
		}
		if at.seq >= there.seq && at.ts < there.ts {
			return true
		}
	}
	return false
}

// loadTail reads what is behind the newest message that is in.
func (c *Catalog) loadTail(ctx context.Context) error {
	changes, through, err := c.scan(ctx, allKeys, c.data.last.seq+1)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(changes, c.otherID) {
		return c.loadAll(ctx)
	}
	c.take(changes, shown(through))
	return nil
}

// take applies changes, in their order, and sends the events to the watchers.
func (c *Catalog) take(changes []change, heard time.Time) {
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
	if len(changes) > 0 && heard.After(c.data.heard) {
		c.data.heard = heard
	}
	c.publish(events)
}

// heardAt notes the newest message as a sign of life.
func (c *Catalog) heardAt(at stamp) {
	if t := shown(at); t.After(c.data.heard) {
		c.data.heard = t
	}
}

// shown is when a message that was read was a sign of life: the server's time, since a snapshot does not tell when it
// arrived. A server's clock ahead of ours must not make the catalog younger than now.
func shown(at stamp) time.Time {
	if at.ts == 0 { // the bucket is empty
		return time.Time{}
	}
	t := time.Unix(0, at.ts)
	if now := time.Now(); t.After(now) {
		return now
	}
	return t
}

// catalogID is the stream's creation time: as the registry wrote it down under epoch.registry, or else, if
// that is allowed, as JetStream says; "" if neither does.
func (c *Catalog) catalogID(ctx context.Context, changes []change) string {
	for _, ch := range changes {
		if id := epochID(ch); id != "" {
			return id
		}
	}
	if !c.opts.AskStreamInfo {
		return ""
	}
	id, err := c.streamCreated(ctx)
	if err != nil {
		c.opts.Logger.Debug("asking for the catalog's creation time", "error", err)
	}
	return id
}

// epochID is the catalog's id if ch is the registries' epoch and holds one.
func epochID(ch change) string {
	var epoch struct {
		CatalogID string `json:"catalog_id"`
	}
	if ch.key != wire.KeyEpoch || ch.value == nil || json.Unmarshal(ch.value, &epoch) != nil {
		return ""
	}
	return epoch.CatalogID
}

// jitter is d ± 10 %, so that a fleet does not ask in step.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + time.Duration(rand.Int64N(int64(d)/5+1))
}
