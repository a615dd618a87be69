package config

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// wrong reports a value of a wrong type.
func (m *mapping) wrong(n ast.Node, key, want string) {
	m.report(n.GetToken(), join(m.path, key), "is %s; want %s", kindOf(n), want)
}

func (m *mapping) boolean(key string, v *bool) {
	n := m.value(key)
	if b, ok := n.(*ast.BoolNode); ok {
		*v = b.Value
	} else if n != nil {
		m.wrong(n, key, "true or false")
	}
}

// text reads a string that check accepts. check returns what is wrong with the string, or "".
func (m *mapping) text(key string, v *string, check func(string) string) {
	n := m.value(key)
	s, ok := str(n)
	if n != nil && !ok {
		m.wrong(n, key, "a string; put it in quotes")
	} else if ok {
		if wrong := check(s); wrong != "" {
			m.report(n.GetToken(), join(m.path, key), "%s", wrong)
			return
		}
		*v = s
	}
}

func str(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	}
	return "", false
}

// list reads a list of strings that check accepts.
func (m *mapping) list(key string, v *[]string, check func(string) string) {
	n := m.value(key)
	if n == nil {
		return
	}
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		m.wrong(n, key, "a list of strings, such as [a, b]")
		return
	}
	*v = nil
	for i, e := range seq.Values {
		key := key + "[" + strconv.Itoa(i) + "]"
		s, ok := str(e)
		if !ok {
			m.wrong(e, key, "a string; put it in quotes")
		} else if wrong := check(s); wrong != "" {
			m.report(e.GetToken(), join(m.path, key), "%s", wrong)
		} else {
			*v = append(*v, s)
		}
	}
}

func (m *mapping) integer(key string, v *int, lo, hi int) {
	n := m.value(key)
	if n == nil {
		return
	}
	i, ok := whole(n)
	if !ok {
		m.wrong(n, key, "a whole number")
	} else if i < int64(lo) || i > int64(hi) {
		m.report(n.GetToken(), join(m.path, key), "%d is out of range; want %d to %d", i, lo, hi)
	} else {
		*v = int(i)
	}
}

// whole returns a whole number; a number beyond 64 bits becomes the largest.
func whole(n ast.Node) (int64, bool) {
	i, ok := n.(*ast.IntegerNode)
	if !ok {
		return 0, false
	}
	switch v := i.Value.(type) {
	case int64:
		return v, true
	case uint64:
		return int64(min(v, math.MaxInt64)), true
	}
	return math.MaxInt64, true
}

func (m *mapping) factor(key string, v *float64, lo, hi float64) {
	n := m.value(key)
	if n == nil {
		return
	}
	var x float64
	if f, ok := n.(*ast.FloatNode); ok {
		x = f.Value
	} else if i, ok := whole(n); ok {
		x = float64(i)
	} else {
		m.wrong(n, key, "a number, such as 3")
		return
	}
	if !(x >= lo && x <= hi) {
		m.report(n.GetToken(), join(m.path, key), "%v is out of range; want %v to %v", x, lo, hi)
		return
	}
	*v = x
}

// duration reads a duration such as 10s.
func (m *mapping) duration(key string, v *time.Duration, lo, hi time.Duration) {
	m.anyDuration(key, v, lo, hi, false)
}

// durationOrOff also accepts 0, which means never or none.
func (m *mapping) durationOrOff(key string, v *time.Duration, lo, hi time.Duration) {
	m.anyDuration(key, v, lo, hi, true)
}

func (m *mapping) anyDuration(key string, v *time.Duration, lo, hi time.Duration, off bool) {
	n := m.value(key)
	if n == nil {
		return
	}
	report := func(format string, args ...any) { m.report(n.GetToken(), join(m.path, key), format, args...) }
	var d time.Duration
	if i, ok := whole(n); ok {
		if i != 0 {
			report(`%d has no unit; want a duration such as %ds, %dms or 1m30s`, i, i, i)
			return
		}
	} else if s, ok := str(n); ok {
		var err error
		if d, err = time.ParseDuration(s); err != nil {
			report("%s is not a duration; want one such as 10s, 500ms or 1m30s", show(s))
			return
		}
	} else {
		m.wrong(n, key, "a duration such as 10s, 500ms or 1m30s")
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
func (m *mapping) size(key string, v *int64, lo, hi int64) {
	n := m.value(key)
	if n == nil {
		return
	}
	report := func(format string, args ...any) { m.report(n.GetToken(), join(m.path, key), format, args...) }
	i, ok := whole(n)
	if s, isText := str(n); isText {
		if i, ok = parseSize(s); !ok {
			report("%s is not a size; want bytes, or one such as 64MiB", show(s))
			return
		}
	}
	if !ok {
		m.wrong(n, key, "a size: bytes, or one such as 64MiB")
	} else if i < lo || i > hi {
		report("%d bytes are out of range; want %s to %s", i, showSize(lo), showSize(hi))
	} else {
		*v = i
	}
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

func showSize(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// show quotes a user's value for a message, and shortens a long one.
func show(s string) string {
	const most = 64
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return strconv.Quote(s)
}
