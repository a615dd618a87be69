package main

import (
	"slices"
	"strings"
	"testing"
)

// TestCallRoundTrips counts the requests of one `extctl call`: the registry resolves the name, and then the tool is called.
func TestCallRoundTrips(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	if err := b.fakeRegistry(); err != nil {
		t.Fatal(err)
	}
	if err := b.fakeExtension("weather"); err != nil {
		t.Fatal(err)
	}
	all, err := b.nc.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.nc.Flush(); err != nil { // the calls come over other connections
		t.Fatal(err)
	}
	for _, tool := range []string{"ext_weather_echo", "ext_weather_echo city=x days=3"} {
		if code, _, stderr := extctl(t.Context(), b.url, append([]string{"call"}, strings.Fields(tool)...)...); code != exitOK {
			t.Fatalf("call %s: exit code %d, %s", tool, code, stderr)
		}
		if err := b.nc.Publish("end", nil); err != nil {
			t.Fatal(err)
		}
		var requests []string
		for {
			m, err := all.NextMsgWithContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if m.Subject == "end" {
				break
			}
			if m.Reply != "" { // others are answers, or what the server publishes late, such as changes of the catalog
				requests = append(requests, m.Subject)
			}
		}
		if want := []string{"ext.registry.rpc", "ext.weather.rpc"}; !slices.Equal(requests, want) {
			t.Errorf("call %s sends requests to %v, want %v", tool, requests, want)
		}
	}
}
