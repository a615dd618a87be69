package calls

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Query selects records; its zero value selects all. It is the params of calls on P.control.<bridge>.
type Query struct {
	ID     string    `json:"id,omitempty"`   // of an extension, or a parent's
	Tool   string    `json:"tool,omitempty"` // its local name
	Agent  string    `json:"agent,omitempty"`
	CallID string    `json:"call_id,omitempty"`
	Failed bool      `json:"failed,omitempty"` // failures only
	Slow   bool      `json:"slow,omitempty"`   // the slowest calls only, slowest first
	MinMS  int64     `json:"min_ms,omitempty"` // calls that took at least this long
	Since  time.Time `json:"since,omitzero"`   // calls answered at or after this time
	Limit  int       `json:"limit,omitempty"`  // at most so many; default and most 1000
}

// maxAnswer limits the number of records in an answer.
const maxAnswer = 1000

// matches reports whether a record is selected, apart from Slow and Limit.
func (q *Query) matches(r *Record) bool {
	return (q.ID == "" || q.ID == r.ID || strings.HasPrefix(r.ID, q.ID+".")) &&
		(q.Tool == "" || r.Method == "tools/"+q.Tool) &&
		(q.Agent == "" || q.Agent == r.Agent) && (q.CallID == "" || q.CallID == r.CallID) &&
		(!q.Failed || r.Outcome != OK) &&
		r.TookUS >= q.MinMS*1000 && !r.At.Before(q.Since)
}

// Calls returns the selected records that are kept: the newest first, or with Slow the slowest. more is true if there are
// more than an answer may have.
func (l *Log) Calls(q Query) (records []Record, more bool) {
	all := []Record{}
	for _, e := range l.all(q.ID) {
		all = e.appendKept(all, &q)
	}
	slices.SortStableFunc(all, func(a, b Record) int { return q.Compare(&a, &b) })
	limit := maxAnswer
	if q.Limit > 0 {
		limit = min(limit, q.Limit)
	}
	return all[:min(len(all), limit)], len(all) > limit
}

// Compare is the order of records in an answer to q.
func (q *Query) Compare(a, b *Record) int {
	if q.Slow {
		return cmp.Or(cmp.Compare(b.TookUS, a.TookUS), b.At.Compare(a.At))
	}
	return b.At.Compare(a.At)
}

func (e *Extension) appendKept(all []Record, q *Query) []Record {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !q.Slow {
		for _, r := range e.inOrder() {
			if q.matches(&r) {
				all = append(all, r)
			}
		}
	}
	if q.Failed && !q.Slow {
		return all
	}
	for _, r := range slices.Concat(e.slow, e.before) {
		if (q.Slow || r.Outcome == OK) && q.matches(&r) { // failures are in the list already
			all = append(all, r)
		}
	}
	return all
}

// Counts is what was counted of one tool.
type Counts struct {
	ID, Tool   string
	Refused    uint64 // on arrival; their durations are not in Took
	Failed     uint64 // answered with an error, or a result with isError; including calls refused on arrival
	ToolFailed uint64 // of these, results with isError
	Took       Durations
}

// Counts returns the counts of all tools that were called, sorted by extension and tool.
func (l *Log) Counts(id string) (out []Counts) {
	for _, e := range l.all(id) {
		from := len(out)
		for _, t := range *e.tools.Load() {
			out = append(out, t.counts(e.id, t.name))
		}
		if c := e.other.counts(e.id, OtherTools); c.Refused > 0 || c.Took.Total() > 0 {
			out = append(out, c)
		}
		slices.SortFunc(out[from:], func(a, b Counts) int { return strings.Compare(a.Tool, b.Tool) })
	}
	return out
}

func (t *tool) counts(id, name string) Counts {
	return Counts{id, name, t.refused.Load(), t.failed.Load(), t.toolFailed.Load(), t.took.Read()}
}
