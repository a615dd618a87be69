package config

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// row is a line of a table of docs/configuration.md.
type row struct{ key, kind, standard, bounds string }

var rowSyntax = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([^|]+) \\| ([^|]*)\\| ([^|]*)\\|")

// TestPage compares docs/configuration.md with Parse: every key has its row, every default and every bound is right,
// and every example parses without diagnostics.
func TestPage(t *testing.T) {
	data, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(data), -1) {
		if _, diags := Parse("example", []byte(block[1])); len(diags) > 0 {
			t.Errorf("%v in\n%s", diags, block[1])
		}
	}
	page := map[string]string{}
	for _, section := range strings.Split(string(data), "\n## ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		page[name] = text
	}
	for _, section := range []string{"extensions", "watch", "doctor", "supervision"} {
		t.Run(section, func(t *testing.T) {
			var listed []string
			for _, m := range rowSyntax.FindAllStringSubmatch(page[section], -1) {
				r := row{m[1], strings.TrimSpace(m[2]), strings.Trim(m[3], " `"), strings.TrimSpace(m[4])}
				listed = append(listed, r.key)
				r.check(t, section)
			}
			if known := keysOf(t, section); !slices.Equal(sortedCopy(listed), sortedCopy(known)) {
				t.Errorf("the page has %v\nParse accepts %v", sortedCopy(listed), sortedCopy(known))
			}
		})
	}
	entry := keysOf(t, "entries: {x")
	if want := append(keysOf(t, "supervision"), "gating", "secrets"); !slices.Equal(sortedCopy(entry), sortedCopy(want)) {
		t.Errorf("an entry has %v, the page has %v", entry, want)
	}
}

func sortedCopy(s []string) []string { s = slices.Clone(s); slices.Sort(s); return s }

// keysOf returns the keys that Parse accepts in a section, from its diagnostic about an unknown one.
func keysOf(t *testing.T, section string) []string {
	t.Helper()
	_, diags := Parse("x", []byte(in(section, "somethingelsealtogether: 1")))
	_, known, ok := strings.Cut(diags[0].Message, "known keys: ")
	if !ok {
		t.Fatal(diags)
	}
	return strings.Split(known, ", ")
}

// in returns a file with text in a section.
func in(section, text string) string {
	if section == "extensions" {
		return "extensions: {" + text + "}"
	}
	return "extensions: {" + section + ": {" + text + strings.Repeat("}", 2+strings.Count(section, "{"))
}

func (r row) check(t *testing.T, section string) {
	t.Helper()
	if r.kind == "mapping" {
		return
	}
	if r.standard != "" {
		c, diags := Parse("x", []byte(in(section, r.key+": "+r.standard)))
		for _, list := range []*[]string{&c.Links, &c.Disabled, &c.Allowlist, &c.ReservedIDs} {
			if len(*list) == 0 {
				*list = nil
			}
		}
		c.Watch.NoReload = false
		if len(diags) > 0 || !reflect.DeepEqual(c, Default()) {
			t.Errorf("%s.%s: %s is not the default: %+v, %v", section, r.key, r.standard, c, diags)
		}
	}
	bounds, zero := strings.CutSuffix(r.bounds, ", or 0")
	lo, hi, bounded := strings.Cut(bounds, " to ")
	if counted := slices.Contains([]string{"whole number", "number", "duration", "size"}, r.kind); counted != bounded {
		t.Errorf("%s.%s is a %s with the bounds %q", section, r.key, r.kind, r.bounds)
	}
	if !bounded {
		return
	}
	for value, legal := range map[string]bool{
		lo: true, hi: true, r.next(t, lo, -1): false, r.next(t, hi, 1): false, "0": zero || lo == "0",
	} {
		_, diags := Parse("x", []byte(in(section, r.key+": "+value)))
		// A conflict of two keys is not a wrong bound.
		diags = slices.DeleteFunc(diags, func(d manifest.Diagnostic) bool { return strings.HasSuffix(d.Message, "the other way round") })
		if (len(diags) == 0) != legal {
			t.Errorf("%s.%s: %s: legal is %t, but %v", section, r.key, value, legal, diags)
		}
	}
}

// next returns the nearest value below (-1) or above (1) a value of r's kind.
func (r row) next(t *testing.T, value string, step int) string {
	t.Helper()
	switch r.kind {
	case "duration":
		d, err := time.ParseDuration(value)
		if err != nil {
			t.Fatal(err)
		}
		return (d + time.Duration(step)*time.Microsecond).String()
	case "size":
		n, ok := parseSize(value)
		if !ok {
			t.Fatalf("%s: %s is not a size", r.key, value)
		}
		return strconv.FormatInt(n+int64(step), 10)
	}
	f, err := strconv.ParseFloat(value, 64)
	if err != nil {
		t.Fatal(err)
	}
	if r.kind == "number" {
		return strconv.FormatFloat(f+float64(step)/1000, 'f', -1, 64)
	}
	return strconv.FormatFloat(f+float64(step), 'f', -1, 64)
}
