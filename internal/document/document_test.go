package document

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

// read opens and decodes a text by the name of its syntax.
func read(t *testing.T, syntax, text string, opt Options) (*Doc, *Table, bool) {
	t.Helper()
	d, ok := Open("x."+syntax, []byte(text), opt)
	if !ok {
		return d, nil, false
	}
	var table *Table
	switch syntax {
	case "toml":
		table, ok = d.TOML()
	case "json":
		table, ok = d.JSON()
	case "yaml":
		table, ok = d.YAML(d.Text())
	default:
		t.Fatalf("unknown syntax %q", syntax)
	}
	return d, table, ok
}

func lines(d *Doc) string {
	var b strings.Builder
	for _, f := range d.Findings() {
		fmt.Fprintf(&b, "%d:%d %s %s: %s\n", f.Line, f.Column, f.Level, f.Key, f.Message)
	}
	return b.String()
}

// TestSyntaxes reads the same faults in each syntax, and checks their positions.
func TestSyntaxes(t *testing.T) {
	for _, test := range []struct{ syntax, text, want string }{
		{"toml", "[a]\nname = 1\nlist = [\"x\",\n 2]\nnumber = \"n\"\ncoler = 1\n[a.b]\nx = [1]\n", `2:1 error a.name: is an integer; want a string in quotes
4:2 error a.list[1]: is an integer; want a string in quotes
5:1 error a.number: is a string; want a whole number
6:1 error a.coler: unknown key; did you mean color?
8:1 error a.b.x: is an array; want a string in quotes
`},
		{"json", "// c\n{\"a\": {\n\"name\": 1,\n\"list\": [\"x\",\n 2], \"number\": \"n\", /* c */ \"coler\": 1,\n\"b\": {\"x\": [1],},\n}}", `3:1 error a.name: is a number; want a string in quotes
5:2 error a.list[1]: is a number; want a string in quotes
5:6 error a.number: is a string; want a whole number
5:29 error a.coler: unknown key; did you mean color?
6:7 error a.b.x: is an array; want a string in quotes
`},
		{"yaml", "a:\n  name: 1\n  list: [x,\n   2]\n  number: n\n  coler: 1\n  b:\n    x: [1]\n", `2:3 error a.name: is a whole number; want a string; put it in quotes
4:4 error a.list[1]: is a whole number; want a string; put it in quotes
5:3 error a.number: is a string; want a whole number
6:3 error a.coler: unknown key; did you mean color?
8:5 error a.b.x: is a list; want a string; put it in quotes
`},
	} {
		d, top, ok := read(t, test.syntax, test.text, Options{})
		if !ok {
			t.Fatalf("%s: %s", test.syntax, lines(d))
		}
		a := top.Sub("a")
		a.Str("name")
		a.Strs("list")
		a.Int("number", 0, 9)
		a.Str("color")
		a.StrMap("b")
		a.Unknown(Error)
		top.Unknown(Error)
		if got := lines(d); got != test.want || d.Faults != 5 {
			t.Errorf("%s: %d faults, got\n%s\nwant\n%s", test.syntax, d.Faults, got, test.want)
		}
	}
}

func TestAtValues(t *testing.T) {
	d, top, _ := read(t, "yaml", "é: {name: 1, list: [a, 2]}\n", Options{AtValues: true})
	sub := top.Sub("é")
	sub.Str("name")
	sub.Strs("list")
	sub.FaultKey(sub.Key("name"), "at its key")
	sub.Fault(sub.Key("absent"), "missing")
	want := `1:5 error "é".absent: missing
1:6 error "é".name: at its key
1:12 error "é".name: is a whole number; want a string; put it in quotes
1:25 error "é".list[1]: is a whole number; want a string; put it in quotes
`
	if got := lines(d); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestLimits(t *testing.T) {
	many := strings.Repeat("0,", maxKeys+1)
	for _, test := range []struct{ syntax, text, want string }{
		{"toml", "a = " + strings.Repeat("[", 20) + strings.Repeat("]", 20), ErrDeep.Error()},
		{"json", `{"a": ` + strings.Repeat("[", 20) + strings.Repeat("]", 20) + "}", ErrDeep.Error()},
		{"yaml", "a: " + strings.Repeat("[", 20) + strings.Repeat("]", 20), ErrDeep.Error()},
		{"toml", strings.Repeat("a", 300) + " = 1", ErrLong.Error()},
		{"json", `{"` + strings.Repeat("a", 300) + `": 1}`, ErrLong.Error()},
		{"yaml", strings.Repeat("a", 300) + ": 1", ErrLong.Error()},
		{"yaml", "a: [" + many + "]", "more than 5000 keys and items"},
		{"yaml", "a: 1\n---\nb: 2", "a second YAML document; want one"},
		{"yaml", "- a", "is a list; want keys and values"},
		{"json", "null", "is null; want an object"},
		{"json", "[]", "is an array; want an object"},
		{"json", "{} // c\n{}", "syntax: invalid character '{' after top-level value"},
		{"json", "", "syntax: unexpected end of JSON input"},
		{"toml", "a = \xff", "the file is not UTF-8; save it as UTF-8"},
		{"yaml", "a: 1\rb: 2", `line 1 contains a carriage return that is not a line end; end lines with \n or \r\n`},
		{"toml", strings.Repeat("#", MaxFile+1), "the file has more than 1048576 bytes (1 MiB)"},
	} {
		d, _, ok := read(t, test.syntax, test.text, Options{})
		if f := d.Findings(); ok || len(f) != 1 || f[0].Message != test.want {
			t.Errorf("%s %.30q: %t, %v; want %s", test.syntax, test.text, ok, f, test.want)
		}
	}
	d, top, ok := read(t, "toml", "a = ["+strings.Repeat("'',", maxElements+9)+"1]", Options{})
	if !ok {
		t.Fatal(lines(d))
	}
	top.Strs("a")
	if want := "1:1 error a[4105]: is an integer; want a string in quotes\n"; lines(d) != want {
		t.Errorf("got %s want %s", lines(d), want)
	}
}

func TestManyFindings(t *testing.T) {
	d, _ := Open("x", nil, Options{Level: Warn})
	for range MaxFindings + 3 {
		d.Fault("a", "wrong")
	}
	f := d.Findings()
	if last := f[len(f)-1]; len(f) != MaxFindings+1 || last.Message != "and 3 more faults" || last.Level != Warn || d.Faults != MaxFindings+3 {
		t.Errorf("%d findings, %d faults, the last %v", len(f), d.Faults, last)
	}
}

func TestLoose(t *testing.T) {
	d, top, _ := read(t, "json", `{"list": [1.50, true, "a", null], "map": {"A": 1, "B": [2]}}`, Options{Loose: true})
	list, skip, ok := top.Strs("list")
	if !ok || !slices.Equal(list, []string{"1.50", "true", "a", ""}) || skip(0) || !skip(3) {
		t.Errorf("%q, %t", list, ok)
	}
	if m := top.StrMap("map"); !maps.Equal(m, map[string]string{"A": "1"}) || d.Faults != 2 {
		t.Errorf("%v, %s", m, lines(d))
	}
}

func FuzzTOML(f *testing.F) {
	for _, s := range []string{"a = 1", "[a.b]\n\"c d\".'e' = [1, {x = \"\\u00e9\"}, '''\n''']\n[[t]]\nk = 2001-01-01", "a.b = \"\"\"x\\\n \"\"\"\"\" # c\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { scanned(t, data) })
}

// scanned checks that the scanner accepts what the decoder accepts, and finds each of its keys.
func scanned(t *testing.T, data []byte) {
	t.Helper()
	d, ok := Open("p", data, Options{})
	if !ok {
		return
	}
	end, over := d.scan()
	if over != nil {
		return
	}
	var tree map[string]any
	md, err := toml.Decode(d.text, &tree)
	if err != nil {
		return
	}
	if end < len(d.text) {
		t.Fatalf("the scanner stopped at %q", d.text[end:])
	}
	for _, key := range md.Keys() {
		path := ""
		for _, part := range key {
			path = Join(path, part)
		}
		if _, ok := d.keys[path]; !ok && !inArray(d.keys, path) {
			t.Errorf("no position for %s", path)
		}
	}
}

// inArray reports whether path goes through an element of an array; the decoder's keys omit the index.
func inArray(pos map[string]int, path string) bool {
	for _, p := range slices.Sorted(maps.Keys(pos)) {
		if i := strings.IndexByte(p, '['); i > 0 && strings.HasPrefix(path, p[:i]) {
			return true
		}
	}
	return false
}

func FuzzYAML(f *testing.F) {
	for _, s := range []string{"a: {b: [c, 1]}\n", "a:\n- b\n-\n  c: d\n", "? [a]\n: b\n", "a: &x 1\nb: *x\n<<: {c: d}\n", "a: |\n  x\n\n  y\nb: !!str 1\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, ok := Open("p", []byte(text), Options{})
		if !ok {
			return
		}
		if top, ok := d.YAML(d.Text()); ok == (top == nil) {
			t.Errorf("a table: %t, but %v", ok, top)
		} else if !ok && d.Faults == 0 {
			t.Error("refused without a fault")
		}
		all := strings.Split(d.text, "\n")
		for _, x := range d.Findings() {
			if x.Line > len(all) || x.Line > 0 && (x.Column < 1 || x.Column > len(all[x.Line-1])+1) {
				t.Errorf("%v has a position outside the text", x)
			}
		}
	})
}

func TestGuard(t *testing.T) {
	err := func() (err error) {
		defer guard(&err)
		panic("a bug")
	}()
	if err == nil || errors.Unwrap(err) != nil || !strings.Contains(err.Error(), "a bug") {
		t.Errorf("got %v", err)
	}
}
