package main

import (
	"bytes"
	"encoding/json"
	"testing"
)

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
