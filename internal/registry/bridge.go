package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// bridge is what is known of one bridge: its own reports, and whether it answers.
type bridge struct {
	name   string
	host   *mesh.Host
	skills []mesh.SkillEntry
	seen   time.Time // a report, an announcement, an answer
	kept   int       // bytes of its reports that are counted

	answered bool  // has ever answered on its control subject, so its absence there means something
	reported bool  // to this replica: what it knows of the host need not be the catalog's word
	asked    asked // because it answers and has not
	pinging  bool
	next     time.Time // do not ask before
	pause    time.Duration
	silent   int  // pings in a row that ran into their time-out
	leaving  bool // it does not answer, and what it had sent by then is being taken in
	gone     bool
	why      string    // it is gone
	changed  time.Time // when it was last found to be gone, or there
}

const (
	maxBridges    = 10_000
	pingTimeout   = time.Second
	maxPingPause  = time.Minute // between pings of one that does not answer; others are asked once a second
	silentPings   = 5           // unanswered ones that condemn a bridge that is there but hangs
	maxBridgePing = 256
)

// bridgeNamed finds or makes the record of a bridge that has reported, on the subject that NATS lets nobody else publish
// on; nil when there are too many.
func (l *loop) bridgeNamed(name string, now time.Time) *bridge {
	if b := l.seenBridge(name, now); b != nil {
		return b
	}
	if len(l.bridges) >= maxBridges {
		return nil
	}
	b := &bridge{name: name, seen: now}
	l.bridges[name] = b
	return b
}

// seenBridge notes that something was received from a bridge, or from what it runs. An announcement can name any bridge,
// so one that has never reported does not come to exist by it.
func (l *loop) seenBridge(name string, now time.Time) *bridge {
	b := l.bridges[name]
	if b == nil {
		return nil
	}
	b.seen = now
	if b.gone {
		b.next, b.pause = time.Time{}, 0 // ping it again soon
	}
	return b
}

// keepReports counts the bytes of a bridge's reports after a change.
func (l *loop) keepReports(b *bridge) {
	size := b.reportSize()
	l.size += size - b.kept
	b.kept = size
}

// reportSize is about how many bytes are kept of a bridge's reports.
func (b *bridge) reportSize() (sum int) {
	if b.host != nil {
		for _, id := range b.host.Extensions {
			sum += len(id) + 16
		}
		for _, p := range b.host.Problems {
			sum += len(p.ID) + len(p.Path) + len(p.Kind) + len(p.Message) + 64
		}
	}
	for _, s := range b.skills {
		sum += len(s.Name) + len(s.Dir) + len(s.Description) + len(s.Body) + 64
	}
	return sum
}

// checkBridge checks a bridge's name: it is a token of subjects and a key of the bucket.
func checkBridge(name string) error {
	if name == "" || heartbeat.CheckInstance(name) != nil {
		return fmt.Errorf("bridge %.80q: want 1 to 64 of [A-Za-z0-9_-]", name)
	}
	return nil
}

func hostKey(name string) string { return mesh.KindHost + "." + name }

// hostReport takes in what a bridge found and could not start.
func (l *loop) hostReport(name string, data []byte, now time.Time) {
	var h mesh.Host
	err := checkBridge(name)
	if err == nil && len(data) > maxReport {
		err = fmt.Errorf("a report of %d bytes is over the limit of %d", len(data), maxReport)
	}
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	if err == nil && strings.ContainsAny(name, " .*>\t\r\n") { // it becomes part of the subjects of pings
		err = fmt.Errorf("the bridge's name %.80q has to be one token of a subject", name)
	}
	if err == nil && h.Bridge != name {
		err = fmt.Errorf("its bridge %.80q is not that of the subject", h.Bridge)
	}
	if err == nil && (len(h.Extensions) > maxListed || len(h.Problems) > maxListed) {
		err = fmt.Errorf("more than %d extensions or problems", maxListed)
	}
	if err == nil {
		err = l.makeRoom(len(data), now)
	}
	var b *bridge
	if err == nil {
		if b = l.bridgeNamed(name, now); b == nil {
			err = fmt.Errorf("there are %d bridges already", maxBridges)
		}
	}
	if err != nil {
		l.refuse("host", name, err)
		return
	}
	h.State, h.Reason, h.StateSince = "", "", time.Time{} // the registry's words
	first := b.host == nil
	anew := !first && !b.host.Since.Equal(h.Since)
	others := b.host == nil || !slices.Equal(b.host.Extensions, h.Extensions)
	b.host, b.reported = &h, true
	l.keepReports(b)
	if anew {
		b.leaving = false
		l.begunAnew(b, now)
	}
	if others {
		l.relisted[b.name] = l.relisted[b.name] || first
	}
	l.pub.mark(hostKey(name), false)
}

// document is the value of host.<bridge>: its report, and whether it answers. was is the document that stands,
// whose time is kept while it says the same of the same run.
func (b *bridge) document(was *mesh.Host) *mesh.Host {
	if b.host == nil {
		return nil
	}
	h := *b.host
	switch {
	case b.gone:
		h.State, h.Reason = heartbeat.Lost, b.why
	case b.answered:
		h.State = heartbeat.Ready
	default: // a bridge of another make, perhaps, which takes no orders
		return &h
	}
	h.StateSince = b.changed.UTC().Truncate(time.Millisecond)
	if was != nil && was.State == h.State && was.Since.Equal(h.Since) && !was.StateSince.IsZero() {
		h.StateSince = was.StateSince
	}
	return &h
}

// The bounds of a bridge's reports.
const (
	maxReport = 512 << 10
	maxListed = 10_000
)

// pingBridges asks every bridge whether it is there. Only the leader does.
func (l *loop) pingBridges(now time.Time) {
	if !l.leading() {
		return
	}
	for _, b := range l.bridges {
		if b.pinging || now.Before(b.next) {
			continue
		}
		b.pinging = true
		q := question{nc: l.nc, subject: l.cfg.Prefix.Control(b.name), method: "ping"}
		l.pings.start(func() {
			l.wg.Go(func() { // owned by the loop; ends with pingTimeout at the latest
				_, err := q.ask(l.ctx, pingTimeout)
				l.report(func(l *loop) {
					l.pings.finish()
					l.pinged(b, err, time.Now())
				})
			})
		})
	}
}

// pinged takes in a bridge's answer, or that there was none. A missing responder has been confirmed by request;
// one that never was there may be a bridge of another make, which its beats have to speak for.
func (l *loop) pinged(b *bridge, err error, now time.Time) {
	b.pinging = false
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		l.missed(b, "is gone", now)
	case errors.Is(err, context.DeadlineExceeded) && l.pulse.fresh(now):
		if b.silent++; b.silent >= silentPings {
			l.missed(b, "does not answer", now)
		}
	case err == nil, errors.As(err, new(*rpc.Error)): // an answer, if only an error
		if b.gone {
			b.reported, b.asked = false, asked{} // what it said meanwhile may have gone where the pings did
		}
		if b.gone || !b.answered {
			b.changed = now
			l.pub.mark(hostKey(b.name), false)
			l.markSkills(b)
		}
		b.answered, b.leaving, b.gone, b.silent, b.seen, b.pause = true, false, false, 0, now, 0
		if !b.reported { // when this replica could not hear it yet; or it is of another make and never does
			l.askFor(&b.asked, now)
		}
	}
}

// missed takes in that a bridge does not answer, and asks it less and less often.
func (l *loop) missed(b *bridge, how string, now time.Time) {
	if b.answered && !b.gone && !b.leaving {
		b.leaving = true
		l.behind(func(now time.Time) {
			if b.leaving {
				l.left(b, how, now)
			}
		})
	}
	b.pause = min(max(2*b.pause, time.Second), maxPingPause)
	b.next = now.Add(b.pause)
}

// left takes in that a bridge has gone, and all that runs there with it.
func (l *loop) left(b *bridge, how string, now time.Time) {
	b.leaving, b.gone, b.changed, b.why = false, true, now, how
	l.condemnBridge(b, "bridge "+b.name+" "+how, now)
	l.pub.mark(hostKey(b.name), true)
	l.markSkills(b)
}

// condemnBridge calls the instances that a bridge runs lost.
func (l *loop) condemnBridge(b *bridge, reason string, now time.Time) {
	lost := 0
	for x, instance := range l.at(b.name) {
		if instance == "" {
			continue
		}
		if c, ok := l.mon.MarkLost(x.id, instance, reason, now); ok {
			l.changed(c)
			l.urge(x.id)
			lost++
		}
	}
	if lost > 0 {
		l.log.Warn("bridge lost", "bridge", b.name, "reason", reason, "instances", lost)
	}
}

// sweepBridges forgets bridges of which nothing has been heard for as long as extensions are remembered.
func (l *loop) sweepBridges(now time.Time) {
	keep := l.cfg.Heartbeat.ForgetAfter
	if keep == 0 {
		keep = 24 * time.Hour
	}
	for name, b := range l.bridges {
		if keep > 0 && now.Sub(b.seen) > keep {
			delete(l.bridges, name)
			l.pub.mark(hostKey(name), false)
			l.replaceSkills(b, nil)
			l.size -= b.kept
		}
	}
}
