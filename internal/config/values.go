package config

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/document"
)

// mapping reads one mapping of the file. Its accessors set the values that are present and valid, and leave others
// unchanged.
type mapping struct{ *document.Table }

// open parses a file; ok is false if that is not possible, which has been reported.
func open(path string, data []byte) (d *document.Doc, top mapping, ok bool) {
	d, ok = document.Open(path, data, document.Options{AtValues: true, Hint: func(table, _ string) string {
		if table == "" {
			return "all keys belong below extensions"
		}
		return ""
	}})
	if ok {
		top.Table, ok = d.YAML(d.Text())
	}
	return d, top, ok
}

// sub returns the mapping at key.
func (m mapping) sub(key string) mapping { return mapping{m.Sub(key)} }

func (m mapping) boolean(key string, v *bool) {
	if b, ok := m.Bool(key); ok {
		*v = b
	}
}

// text reads a string that check accepts. check returns what is wrong with the string, or "".
func (m mapping) text(key string, v *string, check func(string) string) {
	if s, ok := m.Str(key); ok && m.accepts(m.Key(key), s, check) {
		*v = s
	}
}

func (m mapping) accepts(path, s string, check func(string) string) bool {
	wrong := check(s)
	if wrong != "" {
		m.Fault(path, "%s", wrong)
	}
	return wrong == ""
}

// list reads a list of strings that check accepts.
func (m mapping) list(key string, v *[]string, check func(string) string) {
	list, skip, ok := m.Strs(key)
	if !ok {
		return
	}
	*v = nil
	for i, s := range list {
		if !skip(i) && m.accepts(document.Element(m.Key(key), i), s, check) {
			*v = append(*v, s)
		}
	}
}

func (m mapping) integer(key string, v *int, lo, hi int) {
	if n, ok := m.Int(key, int64(lo), int64(hi)); ok {
		*v = int(n)
	}
}

func (m mapping) factor(key string, v *float64, lo, hi float64) {
	var x float64
	switch n, _ := m.Get(key); n := n.(type) {
	case nil:
		return
	case float64:
		x = n
	case int64:
		x = float64(n)
	default:
		m.WrongType(m.Key(key), n, "a number, such as 3")
		return
	}
	if !(x >= lo && x <= hi) {
		m.Fault(m.Key(key), "%v is out of range; want %v to %v", x, lo, hi)
		return
	}
	*v = x
}

// duration reads a duration such as 10s.
func (m mapping) duration(key string, v *time.Duration, lo, hi time.Duration) {
	m.anyDuration(key, v, lo, hi, false)
}

// durationOrOff also accepts 0, which means never or none.
func (m mapping) durationOrOff(key string, v *time.Duration, lo, hi time.Duration) {
	m.anyDuration(key, v, lo, hi, true)
}

func (m mapping) anyDuration(key string, v *time.Duration, lo, hi time.Duration, off bool) {
	report := func(format string, args ...any) { m.Fault(m.Key(key), format, args...) }
	var d time.Duration
	switch n, _ := m.Get(key); n := n.(type) {
	case nil:
		return
	case int64:
		if n != 0 {
			report(`%d has no unit; want a duration such as %ds, %dms or 1m30s`, n, n, n)
			return
		}
	case string:
		var err error
		if d, err = time.ParseDuration(n); err != nil {
			report("%s is not a duration; want one such as 10s, 500ms or 1m30s", document.Show(n))
			return
		}
	default:
		m.WrongType(m.Key(key), n, "a duration such as 10s, 500ms or 1m30s")
		return
	}
	switch {
	case off && d == 0, d >= lo && d <= hi:
		*v = d
	case off:
		report("%s is out of range; want 0 or %s to %s", brief(d), brief(lo), brief(hi))
	default:
		report("%s is out of range; want %s to %s", brief(d), brief(lo), brief(hi))
	}
}

// brief formats a duration without zeros at its end: 5m, not 5m0s.
func brief(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

var units = []struct {
	name  string
	bytes int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1},
}

// size reads a number of bytes: 1048576, 64KiB or 1MB.
func (m mapping) size(key string, v *int64, lo, hi int64) {
	var bytes int64
	switch n, _ := m.Get(key); n := n.(type) {
	case nil:
		return
	case int64:
		bytes = n
	case string:
		var ok bool
		if bytes, ok = parseSize(n); !ok {
			m.Fault(m.Key(key), "%s is not a size; want bytes, or one such as 64MiB", document.Show(n))
			return
		}
	default:
		m.WrongType(m.Key(key), n, "a size: bytes, or one such as 64MiB")
		return
	}
	if bytes < lo || bytes > hi {
		m.Fault(m.Key(key), "%d bytes are out of range; want %s to %s", bytes, showSize(lo), showSize(hi))
		return
	}
	*v = bytes
}

func parseSize(s string) (int64, bool) {
	scale := int64(1)
	for _, u := range units {
		if digits, ok := strings.CutSuffix(s, u.name); ok {
			s, scale = strings.TrimRight(digits, " "), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, false
	}
	if n > math.MaxInt64/scale {
		return math.MaxInt64, true
	}
	return n * scale, true
}

// showSize formats a number of bytes in the largest binary unit that divides it.
func showSize(n int64) string {
	for _, u := range slices.Backward(units[:3]) {
		if n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}
