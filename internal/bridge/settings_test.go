package bridge

import (
	"strings"
	"testing"
)

// TestNames: DefaultName returns a valid name for every host name.
func TestNames(t *testing.T) {
	for host, want := range map[string]string{
		"web-3":                  "web-3",
		"Web-3.example.com":      "web-3",
		"registry":               "bridge-registry",
		"agent.example.com":      "bridge-agent",
		"bridge":                 "bridge-bridge",
		"10":                     "bridge-10",
		"":                       "bridge-0",
		"-_-":                    "bridge-0",
		"büro":                   "b-ro",
		strings.Repeat("x", 100): strings.Repeat("x", 64),
	} {
		got := nameOf(host)
		if got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
		if err := CheckName(got); err != nil {
			t.Errorf("%q: %v", host, err)
		}
	}
	if err := CheckName(DefaultName()); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{
		"registry": `"registry" is reserved; choose another, bridge-registry for example`,
		"control":  "is reserved",
		"A":        "want ^[a-z]",
		"a.b":      "want ^[a-z]",
	} {
		if err := CheckName(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
