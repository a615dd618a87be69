package calls

import "time"

// Stats is the answer to stats on P.control.<bridge> (docs/protocol.md, "Control").
type Stats struct {
	Since    time.Time  `json:"since"`     // start of the bridge
	BoundsUS []int64    `json:"bounds_us"` // of the classes of durations, in microseconds
	Tools    []ToolStat `json:"tools"`
}

// ToolStat is what a bridge has counted of one tool.
type ToolStat struct {
	ID         string   `json:"id"`
	Tool       string   `json:"tool"`
	Calls      uint64   `json:"calls"`
	Failed     uint64   `json:"failed"`
	ToolFailed uint64   `json:"tool_failed"` // of these, results with isError
	SumUS      int64    `json:"sum_us"`      // of all durations
	Counts     []uint64 `json:"counts"`      // of durations in each class; the last one is of those longer than all bounds
}

// BoundsUS returns Bounds in microseconds.
func BoundsUS() []int64 {
	var out []int64
	for _, b := range Bounds {
		out = append(out, b.Microseconds())
	}
	return out
}

// Stats returns the counts of all tools that were called, of an extension and its members, or of all.
func (l *Log) Stats(id string) []ToolStat {
	out := []ToolStat{}
	for _, c := range l.Counts(id) {
		out = append(out, ToolStat{ID: c.ID, Tool: c.Tool, Calls: c.Took.Total() + c.Refused, Failed: c.Failed, ToolFailed: c.ToolFailed,
			SumUS: c.Took.Sum.Microseconds(), Counts: c.Took.N[:]})
	}
	return out
}

// Took returns the counted durations, or ok false if they are in other classes than those of Bounds.
func (t *ToolStat) Took() (d Durations, ok bool) {
	d.Sum = time.Duration(t.SumUS) * time.Microsecond
	return d, copy(d.N[:], t.Counts) == len(d.N) && len(t.Counts) == len(d.N)
}
