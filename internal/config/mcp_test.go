package config

import (
	"strings"
	"testing"
)

func TestParseTokens(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	for _, tt := range []struct{ text, want string }{
		{"tokens: [{name: ada, sha256: " + sum + ", profiles: [x], expires: 2027-01-01}]", ""},
		{"tokens: [{name: ada, sha256: " + sum + ", expires: 2027-01-01T00:00:00Z}]", ""},
		{"", "it has no tokens"},
		{"tokens: []", "it has no tokens"},
		{"tokens: {", "sequence"},
		{"tokens: [{name: ada, sha265: x}]", "sha265"},
		{"tokens: [{name: a/b, sha256: " + sum + "}]", `name "a/b"`},
		{"tokens: [{name: ada, sha256: " + strings.ToUpper(sum) + "}]", "lower-case"},
		{"tokens: [{name: ada, sha256: abcd}]", "64 lower-case"},
		{"tokens: [{name: ada, sha256: " + sum + "}, {name: ada, sha256: " + sum + "}]", "two tokens have the name ada"},
		{strings.Repeat("#", MaxFile+1), "more than"},
	} {
		tokens, err := ParseTokens([]byte(tt.text))
		switch {
		case tt.want == "" && (err != nil || tokens[0].Expires.Year() != 2027):
			t.Errorf("%s: %+v, %v", tt.text, tokens, err)
		case tt.want != "" && (err == nil || tt.want != "sequence" && !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%.100s: %v, want %s", tt.text, err, tt.want)
		}
	}
}

func TestParseProfiles(t *testing.T) {
	p, err := ParseProfiles([]byte("profiles: {research: {only: [arxiv], read_only: true, names: own, tools: search, instructions: x}, default: {}}"))
	if err != nil || len(p) != 2 || !p["research"].ReadOnly || p["research"].Only[0] != "arxiv" {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range []string{"profiles: {a/b: {}}", "profiles: {a: {onyl: [x]}}", "profiles: [", "profile: {}"} {
		if p, err := ParseProfiles([]byte(bad)); err == nil {
			t.Errorf("%s: %+v", bad, p)
		}
	}
}
