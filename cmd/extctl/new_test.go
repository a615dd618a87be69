package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestNew creates an extension in each language, checks it with doctor --runtime, and runs its test.
func TestNew(t *testing.T) {
	for lang, test := range map[string][]string{
		"go": {"go", "test"}, "python": {"python3", "-m", "unittest"}, "node": {"node", "--test"}, "shell": {"sh", "test.sh"},
	} {
		// Not in parallel: three compilers at once exceed doctor's timeout on small machines.
		t.Run(lang, func(t *testing.T) {
			if _, err := exec.LookPath(test[0]); err != nil {
				if os.Getenv("CI") == "true" {
					t.Fatal(err)
				}
				t.Skip(err)
			}
			// The environment of the test run may set it.
			for _, name := range []string{"MY_EXT_ALLOW_WRITE", "EXTMESH_STATE_DIR"} {
				t.Setenv(name, "")
			}
			dir := t.TempDir()
			if code, _, stderr := extctl(t.Context(), "", "new", "my-ext", "--lang", lang, "--dir", dir); code != 0 {
				t.Fatal(stderr)
			}
			made := filepath.Join(dir, "my-ext")
			code, stdout, stderr := extctl(t.Context(), "", "doctor", "--runtime", "--json", "--state-dir", t.TempDir(), made)
			var out struct {
				Results     []doctorResult
				Diagnostics []json.RawMessage
			}
			if err := json.Unmarshal([]byte(stdout), &out); err != nil {
				t.Fatal(err)
			}
			if code != 0 || len(out.Results) != 1 || len(out.Diagnostics) != 0 || !strings.HasPrefix(out.Results[0].Detail, "2 tools") {
				t.Errorf("exit code %d, %s%s", code, stdout, stderr)
			}
			cmd := exec.CommandContext(t.Context(), test[0], test[1:]...)
			cmd.Dir, cmd.Env = made, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", strings.Join(test, " "), err, out)
			}
		})
	}
}
