package main

import (
	"bytes"
	"encoding/json"
	"reflect"
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
		have := string(escapeJSON([]byte(in)))
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
		if have := short(in, 5); have != want {
			t.Errorf("%q: %q, want %q", in, have, want)
		}
	}
}

// TestPaintCell: what does not work is seen at once.
func TestPaintCell(t *testing.T) {
	for _, tt := range [][3]string{
		{"STATE", "ready", green}, {"STATE", "spawning", yellow}, {"STATE", "lost 13s ago", red}, {"STATE", "gated", red}, {"STATE", "-", ""},
		{"INSTANCES", "1/2", yellow}, {"INSTANCES", "2/2", ""}, {"PATH", "a/b", ""}, {"ID", "lost", ""},
	} {
		want := tt[1]
		if tt[2] != "" {
			want = tt[2] + want + noColour
		}
		if got := paintCell(tt[0], tt[1]); got != want {
			t.Errorf("%s %q: %q, want %q", tt[0], tt[1], got, want)
		}
	}
}

// TestPipesAreRaw: what is not printed on a terminal is not changed.
func TestPipesAreRaw(t *testing.T) {
	const raw = "{\"a\":\"\u009b\u202e\x9b\"}"
	var out bytes.Buffer
	s := &session{app: &app{stdout: &out}}
	if err := s.printResult(json.RawMessage(raw), false); err != nil || out.String() != raw+"\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// FuzzEscapeJSON: nothing that is printed controls a terminal, and JSON stays JSON.
func FuzzEscapeJSON(f *testing.F) {
	f.Add([]byte("{\"a\":\"\u009b\u202e\x9b\U000e0041\"}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		out := escapeJSON(in)
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
