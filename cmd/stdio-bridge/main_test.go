package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUsageErrorsBeforeConnecting: errors in the flags or in extensions.yaml are reported before the bridge waits for
// NATS.
func TestUsageErrorsBeforeConnecting(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("bad.yaml", []byte("extensions:\n  gating: maybe\n  wath: {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string][]string{
		"--config bad.yaml": {
			"stdio-bridge: error: bad.yaml cannot be used:\nbad.yaml:2:11: error: extensions.gating: ",
			"\nbad.yaml:3:3: error: extensions.wath: unknown key; did you mean watch?\nstdio-bridge: hint: fix the file",
		},
		"--config none.yaml": {"none.yaml: error: there is no such file"},
		"--name A":           {`--name: id "A"`, "hint: see stdio-bridge --help"},
		"--secrets all":      {`--secrets: "all" is not a mode; want inherit or granted`},
		"--search-path nope": {"--search-path: ", "there is no directory nope", "hint: see stdio-bridge --help"},
		"--frob":             {"-frob", "hint: see stdio-bridge --help"},
	} {
		var out bytes.Buffer
		code := program().Execute(t.Context(), append(strings.Fields(args), "--server", "127.0.0.1:1"), &out, &out)
		if code != 2 { // a bridge that waits for NATS first never returns
			t.Errorf("%s: exit %d", args, code)
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s: %q, want %q", args, &out, w)
			}
		}
	}
	// The default path of the configuration has the same checks.
	if err := os.Mkdir("config", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename("bad.yaml", filepath.Join("config", "extensions.yaml")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if code := program().Execute(t.Context(), []string{"--server", "127.0.0.1:1"}, &out, &out); code != 2 {
		t.Errorf("exit %d, %s", code, &out)
	}
}
