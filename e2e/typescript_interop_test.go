//go:build interop

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestNodeTypeScript checks the types of the projects that extctl new makes, and compiles and runs them, because an older
// Node does not run TypeScript.
func TestNodeTypeScript(t *testing.T) {
	dir := nodeDir(t)
	for id, flags := range map[string][]string{"native": {}, "mcp": {"--mcp"}, "server": {"--transport", "http"}} {
		project := filepath.Join(dir, id)
		run := func(name string, args ...string) string {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), name, args...)
			cmd.Dir = dir
			if base := filepath.Base(name); base == "tsc" || base == "node" {
				cmd.Dir = project
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
			}
			return string(out)
		}
		extctl, tsc := program(t, "extctl"), filepath.Join(dir, "node_modules", ".bin", "tsc")
		run(extctl, append([]string{"new", id, "--lang", "typescript"}, flags...)...)
		run(tsc, "--noEmit", "false", "--outDir", "out", "--allowImportingTsExtensions", "false", "--rewriteRelativeImportExtensions")
		if id == "server" { // like the others, but for one option of run
			continue
		}
		for _, name := range []string{"extmesh.mjs", "package.json"} {
			if err := os.Rename(filepath.Join(project, name), filepath.Join(project, "out", name)); err != nil {
				t.Fatal(err)
			}
		}
		run("node", "--test", "out/main.test.js")
		text, err := os.ReadFile(filepath.Join(project, "plugin.toml"))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(project, "plugin.toml"), strings.Replace(string(text), "main.ts", "out/main.js", 1))
		if out := run(extctl, "doctor", "--runtime", "--state-dir", t.TempDir(), id); !strings.Contains(out, "2 tools, dialect "+map[string]string{"native": "ext", "mcp": "mcp"}[id]) {
			t.Errorf("%s", out)
		}
	}
}
