package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

const (
	minReportInterval = 250 * time.Millisecond // at most, however many ask: a report may be half a megabyte
	reportRepeatDelay = 2 * time.Second        // after the start, a reload, a reconnect, and an answer to who asked
	reportHeartbeats  = 20                     // beats between two reports when there is nothing new
)

// hearRequests subscribes to requests to announce, until stop. It comes before the first report: a registry asks when
// it begins, and of a bridge that reported just before that, and begins to hear requests just after, it would never
// learn.
func (b *Bridge) subscribeAnnounceRequests() (requests <-chan *nats.Msg, stop func(), err error) {
	ch := make(chan *nats.Msg, 16) // more than one is one
	sub, err := b.nc.ChanSubscribe(b.cfg.Prefix.AnnounceRequest(), ch)
	if err != nil {
		return nil, nil, fmt.Errorf("subscribing to requests to announce: %w", err)
	}
	return ch, func() { _ = sub.Unsubscribe() }, nil // it fails on a closed connection only
}

// report says what this bridge has to say of itself: whenever somebody asks, after a reconnect, and once more a while
// after each time that there was a reason to. In a cluster of servers a report may be under way before its server knows
// of a registry elsewhere, and that one's request before its own server knows of this bridge; and any one message may be
// lost. What was lost twice, or to a registry that was cut off, comes with the reports that have no reason.
func (b *Bridge) repeatReports(ctx context.Context, requests <-chan *nats.Msg) {
	status := b.nc.StatusChanged(nats.CONNECTED)
	defer b.nc.RemoveStatusListener(status)
	repeat := time.NewTimer(reportRepeatDelay)
	defer repeat.Stop()
	var last time.Time
	answerDue := false // an answer to who asked, until it is time for it
	for {
		next := reportRepeatDelay
		select {
		case <-ctx.Done():
			return
		case <-b.planAdopted: // and reported
			answerDue = false
			repeat.Reset(next)
			continue
		case <-b.reportContested:
			if !answerDue {
				repeat.Reset(next) // when the other one has gone
			}
			continue
		case <-requests:
			if early := minReportInterval - time.Since(last); early > 0 {
				answerDue = true
				repeat.Reset(early)
				continue
			}
		case _, open := <-status:
			if !open {
				status = nil
				continue
			}
		case <-repeat.C:
			if !answerDue {
				b.publishRemovals(b.takeRemoved())
				next = reportHeartbeats * max(b.config().HeartbeatInterval, heartbeat.MinInterval)
				next = next*9/10 + rand.N(next/5+1) // a fleet that was started together does not go on in step
			}
		}
		b.publishReports()
		last, answerDue = time.Now(), false
		repeat.Reset(next)
	}
}

// publishReports says which skills this host has, and what it found and could not start.
func (b *Bridge) publishReports() {
	b.reportMu.Lock()
	defer b.reportMu.Unlock()
	b.mu.Lock()
	p := b.current
	b.mu.Unlock()
	b.publishHost(p.host)
	b.publishSkills(p.skills.Skills)
	for _, d := range p.declared {
		b.publish(b.cfg.Prefix.Announce(d.announce.ID), d.announce)
	}
}

func (b *Bridge) publishHost(host mesh.Host) {
	host.Bridge, host.Host, host.Version, host.Since = b.cfg.Name, b.cfg.Host, b.cfg.Version, b.since
	b.publish(b.cfg.Prefix.HostReport(b.cfg.Name), fitReport(host, min(maxReport, int(b.nc.MaxPayload())-reportRoom)))
}

const (
	maxReport        = 512 << 10 // the largest report that registries accept
	reportRoom       = 4 << 10   // for what the registry adds, so that the report fits into the catalog
	maxReportProblem = 2 << 10   // bytes of one message, where not all fit
)

// fitReport returns h with at most limit bytes. Where it is larger, long messages are cut, then the last problems are left
// out. If the extensions alone take too much, all of them are left out: registries drop what an incomplete list would lack.
func fitReport(h mesh.Host, limit int) mesh.Host {
	if encodedSize(h) <= limit {
		return h
	}
	all := h.Problems
	h.Problems = nil
	if encodedSize(h) > limit {
		h.Extensions, h.ExtensionsLeftOut = nil, len(h.Extensions)
	}
	h.ProblemsLeftOut = len(all) // the number has its room while the others are added
	size := encodedSize(h) + len(`"problems":[],`)
	for _, p := range all {
		if len(p.Message) > maxReportProblem {
			p.Message = strings.ToValidUTF8(p.Message[:maxReportProblem], "") + " [cut]"
		}
		if size += encodedSize(p) + 1; size > limit {
			break
		}
		h.Problems = append(h.Problems, p)
	}
	h.ProblemsLeftOut = len(all) - len(h.Problems)
	return h
}

// encodedSize is the length of v as JSON.
func encodedSize(v any) int {
	data, _ := json.Marshal(v) // it holds strings and numbers, and a time within the years of JSON
	return len(data)
}

func (b *Bridge) publishSkills(skills []mesh.SkillEntry) {
	b.publish(b.cfg.Prefix.Skills(b.cfg.Name), mesh.SkillReport{Bridge: b.cfg.Name, Skills: append([]mesh.SkillEntry{}, skills...)})
}

func (b *Bridge) publish(subject string, v any) {
	data, err := json.Marshal(v)
	if err == nil {
		err = b.nc.Publish(subject, data)
	}
	if err != nil {
		b.log.Warn("could not publish", "subject", subject, "error", err)
	}
}

// withdrawn are the services that were declared in old and are not in now.
func removedDeclarations(old, now []declaration) (ids []string) {
	for _, d := range old {
		if !declares(now, d.announce.ID) {
			ids = append(ids, d.announce.ID)
		}
	}
	return ids
}

func declares(list []declaration, id string) bool {
	return slices.ContainsFunc(list, func(d declaration) bool { return d.announce.ID == id })
}

// withdraw says of services that were declared that nobody expects them any more. One that runs stays.
func (b *Bridge) publishRemovals(ids []string) {
	for _, id := range ids {
		b.publish(b.cfg.Prefix.Shutdown(id), mesh.Goodbye{ID: id, Reason: mesh.GoodbyeRemoved})
	}
}

// toWithdraw is what has been withdrawn once and is to be a second time: not more often, since another host may declare
// the same.
func (b *Bridge) takeRemoved() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := b.removed
	b.removed = nil
	return slices.DeleteFunc(ids, func(id string) bool { return declares(b.current.declared, id) })
}

// sayGoodbye withdraws this host's skills: they go with the bridge. Its extensions said good-bye themselves. What would
// have been said again is said now.
func (b *Bridge) publishFinalReports() {
	b.publishRemovals(b.takeRemoved())
	b.mu.Lock()
	p := b.current
	b.mu.Unlock()
	b.publishHost(p.host)
	b.publishSkills(nil)
}
