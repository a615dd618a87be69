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

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

const (
	minReportInterval = 250 * time.Millisecond // between two requested reports, each of up to half a megabyte
	reportRepeatDelay = 2 * time.Second        // after the start, a reload, a reconnect, and an answer to an announce request
	reportHeartbeats  = 20                     // heartbeat intervals between two periodic reports
)

// subscribeAnnounceRequests subscribes to announce requests until stop is called. It is called before the first report: a
// registry that starts between a report and the subscription would otherwise never receive a report.
func (b *Bridge) subscribeAnnounceRequests() (requests <-chan *nats.Msg, stop func(), err error) {
	ch := make(chan *nats.Msg, 16) // several pending requests are answered by one report
	sub, err := b.nc.ChanSubscribe(b.cfg.Prefix.AnnounceRequest(), ch)
	if err != nil {
		return nil, nil, fmt.Errorf("subscribing to announce requests: %w", err)
	}
	return ch, func() { _ = sub.Unsubscribe() }, nil // it fails only on a closed connection
}

// repeatReports publishes this bridge's report on each announce request and after a reconnect, and repeats each report
// once after a short delay: in a cluster, a report may pass a server that has not received the registry's subscription
// yet, and any single message may be lost. A registry that missed both, or was disconnected, gets the next periodic report.
func (b *Bridge) repeatReports(ctx context.Context, requests <-chan *nats.Msg) {
	status := b.nc.StatusChanged(nats.CONNECTED)
	defer b.nc.RemoveStatusListener(status)
	repeat := time.NewTimer(reportRepeatDelay)
	defer repeat.Stop()
	var last time.Time
	answerDue := false // an announce request waits for its answer, because the last report was recent
	for {
		next := reportRepeatDelay
		select {
		case <-ctx.Done():
			return
		case <-b.planAdopted: // and its report published
			answerDue = false
			repeat.Reset(next)
			continue
		case <-b.reportContested:
			if !answerDue {
				repeat.Reset(next) // after the other bridge has exited
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
				next = reportHeartbeats * max(b.planner.config().HeartbeatInterval, heartbeat.MinInterval)
				next = next*9/10 + rand.N(next/5+1) // so that bridges started together do not report at the same time
			}
		}
		b.publishReports()
		last, answerDue = time.Now(), false
		repeat.Reset(next)
	}
}

// publishReports publishes the report of this host, its skills, and its declared services.
func (b *Bridge) publishReports() {
	b.reportMu.Lock()
	defer b.reportMu.Unlock()
	p := b.plan()
	b.publishHost(p.host)
	b.publishSkills(p.skills.Skills)
	for _, d := range p.declared {
		b.publish(b.cfg.Prefix.Announce(d.announce.ID), d.announce)
	}
}

func (b *Bridge) publishHost(host wire.Host) {
	host.Bridge, host.Host, host.Version, host.Since = b.cfg.Name, b.cfg.Host, b.cfg.Version, b.name.self.Since
	b.publish(b.cfg.Prefix.HostReport(b.cfg.Name), fitReport(host, min(maxReport, int(b.nc.MaxPayload())-reportRoom)))
}

const (
	maxReport        = 512 << 10 // the largest report that a registry accepts
	reportRoom       = 4 << 10   // for the members that the registry adds to the report in the catalog
	maxReportProblem = 2 << 10   // bytes of one problem's message in a report that is too large
)

// fitReport returns h with at most limit bytes. If h is larger, it cuts long messages and then leaves out the last
// problems. If the extensions alone are too large, it leaves out all of them: a registry would remove the extensions that
// are missing from an incomplete list.
func fitReport(h wire.Host, limit int) wire.Host {
	if encodedSize(h) <= limit {
		return h
	}
	all := h.Problems
	h.Problems = nil
	if encodedSize(h) > limit {
		h.Extensions, h.ExtensionsLeftOut = nil, len(h.Extensions)
	}
	h.ProblemsLeftOut = len(all) // reserves room for the number
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

// encodedSize returns the length of v as JSON.
func encodedSize(v any) int {
	data, _ := json.Marshal(v) // its strings, numbers and time can always be encoded
	return len(data)
}

func (b *Bridge) publishSkills(skills []wire.SkillEntry) {
	b.publish(b.cfg.Prefix.Skills(b.cfg.Name), wire.SkillReport{Bridge: b.cfg.Name, Skills: append([]wire.SkillEntry{}, skills...)})
}

func (b *Bridge) publish(subject string, v any) {
	data, err := json.Marshal(v)
	if err == nil {
		err = b.nc.Publish(subject, data)
	}
	if err != nil {
		b.log.Warn("cannot publish", "subject", subject, "error", err)
	}
}

// removedDeclarations returns the ids of the services that are declared in old but not in now.
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

// publishRemovals publishes shutdown notices for services that are no longer declared. A running service is not affected.
func (b *Bridge) publishRemovals(ids []string) {
	for _, id := range ids {
		b.publish(b.cfg.Prefix.Shutdown(id), wire.ShutdownNotice{ID: id, Reason: wire.ReasonRemoved})
	}
}

// takeRemoved returns the removed services for which a second, last shutdown notice has to be published. There is no third
// one, because another host may declare the same service.
func (b *Bridge) takeRemoved() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := b.removed
	b.removed = nil
	return slices.DeleteFunc(ids, func(id string) bool { return declares(b.current.declared, id) })
}

// publishFinalReports removes this host's skills from the catalog when the bridge stops, and repeats pending removals. The
// extensions have published their own shutdown notices.
func (b *Bridge) publishFinalReports() {
	b.publishRemovals(b.takeRemoved())
	p := b.plan()
	b.publishHost(p.host)
	b.publishSkills(nil)
}
