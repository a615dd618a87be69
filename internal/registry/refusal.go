package registry

import (
	"log/slog"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/words"
)

// Refusal is a kind of refused message and the reason. Equal ones are counted together.
type Refusal struct {
	What   string    `json:"what"` // announce, beat, shutdown, …
	ID     string    `json:"id"`   // from the subject, cut to 100 bytes
	Reason string    `json:"reason"`
	Count  uint64    `json:"count"`
	Last   time.Time `json:"last"`
}

// refusals counts all refused messages and remembers the latest kinds.
type refusals struct {
	counts map[string]uint64 // by what
	recent []*Refusal        // latest last
	logged int               // lines since the last self-check
}

const (
	maxRefusals = 100
	maxLogged   = 10 // log lines between two self-checks, so that a flood of messages does not flood the log
)

// add counts a refusal and reports whether to log it: it is new, and not part of a flood.
func (r *refusals) add(what, id, reason string, now time.Time) bool {
	if r.counts == nil {
		r.counts = map[string]uint64{}
	}
	r.counts[what]++
	id, reason = words.Clip(id, 100), words.Clip(reason, 500)
	n := slices.IndexFunc(r.recent, func(o *Refusal) bool { return o.What == what && o.ID == id && o.Reason == reason })
	if n >= 0 {
		o := r.recent[n]
		o.Count++
		o.Last = now
		r.recent = append(slices.Delete(r.recent, n, n+1), o)
		return false
	}
	if len(r.recent) == maxRefusals {
		r.recent = slices.Delete(r.recent, 0, 1)
	}
	r.recent = append(r.recent, &Refusal{What: what, ID: id, Reason: reason, Count: 1, Last: now})
	r.logged++
	return r.logged <= maxLogged
}

func (r *refusals) list() []Refusal {
	out := make([]Refusal, 0, len(r.recent))
	for _, o := range slices.Backward(r.recent) {
		out = append(out, *o)
	}
	return out
}

func (l *loop) refuse(what, id string, err error) {
	text := words.Clip(err.Error(), 1000) // it can quote what was received
	if l.refused.add(what, id, text, time.Now()) {
		l.log.Log(l.ctx, l.level(slog.LevelWarn), "refused", "what", what, "id", words.Clip(id, 100), "error", text)
	}
}
