package config

import (
	"strings"
	"testing"
)

func TestParseTokens(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	for _, tt := range []struct{ text, want string }{
		{"tokens: {ada: {sha256: " + sum + ", profiles: [x], expires: 2027-01-01}}", ""},
		{"tokens: {ada: {sha256: " + sum + ", expires: \"2027-01-01T00:00:00Z\"}}", ""},
		{"tokens: [x]", "tokens"},
		{"tokens: {", "syntax"},
		{"tokens: {ada: {sha265: x}}", "sha265"},
		{"tokens: {a/b: {sha256: " + sum + "}}", "is not a name"},
		{"tokens: {ada: {sha256: " + strings.ToUpper(sum) + "}}", "lower-case"},
		{"tokens: {ada: {}}", "64 lower-case"},
		{"tokens: {ada: {sha256: " + sum + ", expires: soon}}", `"soon" is not a time`},
		{"tokens: {ada: {sha256: " + sum + "}, ada: {sha256: " + sum + "}}", "ada"},
		{strings.Repeat("#", MaxFile+1), "1 MiB"},
	} {
		tokens, err := ParseTokens("t.yaml", []byte(tt.text))
		switch {
		case tt.want == "" && (err != nil || tokens[0].Expires.Year() != 2027 || tokens[0].Name != "ada"):
			t.Errorf("%s: %+v, %v", tt.text, tokens, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "t.yaml")):
			t.Errorf("%.100s: %v, want %s", tt.text, err, tt.want)
		}
	}
}

func TestNoTokens(t *testing.T) {
	for _, text := range []string{"", "tokens: {}", "tokens:\n"} {
		if tokens, err := ParseTokens("t.yaml", []byte(text)); err != nil || len(tokens) != 0 {
			t.Errorf("%q: %+v, %v", text, tokens, err)
		}
	}
}

func TestParseProfiles(t *testing.T) {
	p, err := ParseProfiles("p.yaml", []byte("profiles: {research: {description: d, only: [arxiv], exclude: [x], read_only: true, names: own, name_limit: 50, tools: search, search_over: 9, instructions: x}, default: {}}"))
	r := p["research"]
	if err != nil || len(p) != 2 || !r.ReadOnly || r.Only[0] != "arxiv" || r.Exclude[0] != "x" || r.Names != "own" || r.NameLimit != 50 || r.Tools != "search" || r.SearchOver != 9 || r.Instructions != "x" {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range []string{"profiles: {a/b: {}}", "profiles: {a: {onyl: [x]}}", "profiles: [", "profile: {}", "profiles: {a: {name_limit: 7}}"} {
		if p, err := ParseProfiles("p.yaml", []byte(bad)); err == nil {
			t.Errorf("%s: %+v", bad, p)
		}
	}
}
