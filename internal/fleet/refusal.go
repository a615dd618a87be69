package fleet

import (
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// codeRefused is the diagnostic of an extension whose messages are refused.
const codeRefused = "refused"

// refusalInterval is the minimum interval of changes of a refusal. The reasons for two messages can differ, and each change
// writes the spec.
const refusalInterval = time.Minute

// refusal is why the messages of one kind are refused. An extension has one for each kind, for all of its instances.
type refusal struct {
	reason   string // "" if none is refused
	instance string // that has sent it; "" if it is unknown
	set      time.Time
	last     time.Time // of the last message that was refused
}

// add records a message that was refused. It reports whether the reason has changed.
func (r *refusal) add(instance string, err error, now time.Time) bool {
	r.last = now
	reason := words.Clip(err.Error(), maxReason)
	if r.reason == reason || now.Sub(r.set) < refusalInterval {
		return false
	}
	if heartbeat.CheckInstance(instance) != nil {
		instance = ""
	}
	r.reason, r.instance, r.set = strings.Clone(reason), strings.Clone(instance), now
	return true
}

// accept records that a message of an instance was accepted. If another instance sent the refused one, the reason is kept until no
// message has been refused for refusalInterval. It reports whether the reason has changed.
func (r *refusal) accept(instance string, now time.Time) bool {
	if r.reason == "" || r.instance != instance && now.Sub(r.last) < refusalInterval {
		return false
	}
	r.reason = ""
	return true
}

// sweepRefusals removes the reasons of which the cause is gone: heartbeats are sent again and again, and announcements as long
// as the instance runs.
func sweepRefusals(na *natives, x *extension, now time.Time) {
	i, known := na.mon.Instance(x.id, x.refusedAnnouncements.instance)
	for r, running := range map[*refusal]bool{&x.refusedHeartbeats: false, &x.refusedAnnouncements: known && isUpAndNamed(i)} {
		if now.Sub(r.last) > maxUnused && !running && r.accept(r.instance, now) {
			na.mark(SpecKey(x.id), false)
		}
	}
}

// refuseHeartbeat refuses a heartbeat for an id. If the id has an extension, it keeps the reason.
func (na *natives) refuseHeartbeat(id, instance string, err error, now time.Time) {
	na.refuse("beat", id, err)
	if x := na.exts[id]; x != nil && x.refusedHeartbeats.add(instance, err, now) {
		na.mark(SpecKey(id), false)
	}
}

// refuseAnnouncement does the same for an announcement.
func (na *natives) refuseAnnouncement(id, instance string, err error, now time.Time) {
	na.refuse("announce", id, err)
	x, s := na.exts[id], na.unannounced[id]
	if x != nil && x.refusedAnnouncements.add(instance, err, now) {
		na.mark(SpecKey(id), false)
	}
	if x == nil && s != nil {
		s.refused.add(instance, err, now) // until its heartbeats are shown
	}
}

// acceptAnnouncement records that an announcement was accepted. An announcement is sent once, so it also counts for one that was
// refused of an unknown instance.
func acceptAnnouncement(na *natives, x *extension, a *announced, now time.Time) {
	if x == nil || a.implied {
		return
	}
	from := a.Instance
	if x.refusedAnnouncements.instance == "" {
		from = ""
	}
	if x.refusedAnnouncements.accept(from, now) {
		na.mark(SpecKey(x.id), false)
	}
}

// refusals returns the diagnostics about messages that are refused.
func (x *extension) refusals() (out []wire.Diagnostic) {
	implied := x.shown != nil && x.shown.implied
	reason := x.refusedAnnouncements.reason
	switch {
	case implied && reason != "":
		out = append(out, wire.Diagnostic{Level: "error", Code: codeNotAnnounced,
			Message: "what is shown comes from the heartbeats of the extension; its announcements are refused: " + reason})
	case implied:
		out = append(out, wire.Diagnostic{Level: "info", Code: codeNotAnnounced,
			Message: "the extension has not been announced; what is shown comes from its heartbeats"})
	case reason != "":
		out = append(out, wire.Diagnostic{Level: "error", Code: codeRefused, Message: "its announcements are refused: " + reason})
	}
	if reason := x.refusedHeartbeats.reason; reason != "" {
		out = append(out, wire.Diagnostic{Level: "error", Code: codeRefused, Message: "its heartbeats are refused: " + reason})
	}
	return out
}
