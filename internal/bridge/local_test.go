package bridge_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// examined returns the configuration of a host with one extension, a shell script, without a mesh.
func examined(t *testing.T, script, more string) bridge.Config {
	t.Helper()
	dir := t.TempDir()
	text := "[plugin]\nid = \"one\"\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"x\"]\n[transport]\ntype = \"stdio\"\ncommand = \"sh\"\nargs = [\"main.sh\"]\n" + more
	for name, text := range map[string]string{"plugin.toml": text, "main.sh": script} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings := config.Default()
	settings.SearchPaths = []string{dir}
	return bridge.Config{Settings: settings, StateDir: t.TempDir(), Environ: append(os.Environ(), "ONE_TOKEN=hunter22hunter22")}
}

func examine(t *testing.T, cfg bridge.Config) bridge.Trial {
	t.Helper()
	report := bridge.NewLocal(cfg).Scan(t.Context())
	if len(report.Candidates) != 1 {
		t.Fatalf("%+v", report)
	}
	c := report.Candidates[0]
	return bridge.NewLocal(cfg).Examine(t.Context(), c, c.Manifest)
}

const answers = `
while read -r line; do
	case $line in
	*'"initialize"'*) echo '{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"x"}],"hooks":["h"]}}' ;;
	*'"tools/list"'*) ` + "%s" + ` ;;
	*) exit 0 ;;
	esac
done`

func TestExamine(t *testing.T) {
	const list = `echo '{"jsonrpc":"2.0","id":2,"result":{"tools":[{"name":"x"}]}}'`
	for name, tt := range map[string]struct {
		script, more string
		err          string // "" for none
		problem      string
		exit         string
	}{
		"good":            {script: strings.Replace(answers, "%s", list, 1)},
		"no tools/list":   {script: strings.Replace(answers, "%s", `echo '{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"no"}}'`, 1)},
		"another list":    {script: strings.Replace(answers, "%s", `echo '{"jsonrpc":"2.0","id":2,"result":{"tools":[]}}'`, 1), problem: "tools/list returns different tools"},
		"bad list":        {script: strings.Replace(answers, "%s", `echo '{"jsonrpc":"2.0","id":2,"result":7}'`, 1), err: "tools/list"},
		"exits at list":   {script: strings.Replace(answers, "%s", `exit 7`, 1), err: "exit status 7", exit: "exit status 7"},
		"exits":           {script: "exit 3", err: "exit status 3", exit: "exit status 3"},
		"leaks":           {script: `read -r line; echo '{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"hunter22hunter22 is refused"}}'; cat`, err: "[ONE_TOKEN] is refused"},
		"leaks and exits": {script: `echo hunter22hunter22 >&2; exit 4`, err: "stderr: [ONE_TOKEN]", exit: "exit status 4"},
		"noise":           {script: "echo Welcome; exit 0", err: "exit status 0", exit: "exit status 0", problem: "not JSON-RPC messages: 1"},
		"wrong dialect":   {script: strings.Replace(answers, "%s", list, 1), more: "dialect = \"mcp\"\n", err: "dialect"},
		"no program":      {more: "env = { PATH = \"/nowhere\" }\n", err: "is not in the PATH"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trial := examine(t, examined(t, tt.script, tt.more))
			if got := errorText(trial.Err); got == "" != (tt.err == "") || !strings.Contains(got, tt.err) {
				t.Errorf("error %q, want %q", got, tt.err)
			}
			if tt.err == "" && (trial.Dialect != manifest.Ext || !slices.Equal(trial.Tools, []string{"x"}) || !slices.Equal(trial.Hooks, []string{"h"})) {
				t.Errorf("%+v", trial)
			}
			exit := ""
			if trial.Exit != nil {
				exit = trial.Exit.Status()
			}
			if exit != tt.exit {
				t.Errorf("it ended with %q, want %q", exit, tt.exit)
			}
			problems := ""
			for _, p := range trial.Problems {
				problems += p.Message + "\n"
			}
			if problems == "" != (tt.problem == "") || !strings.Contains(problems, tt.problem) {
				t.Errorf("problems %q, want %q", problems, tt.problem)
			}
			if strings.Contains(errorText(trial.Err)+strings.Join(trial.Stderr, ""), "hunter22") {
				t.Errorf("it shows a secret: %+v", trial)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestExamineStopsAtDeadline: after its context's deadline Examine ends the process, even if it ignores SIGTERM, and does
// not give it the time of an orderly stop.
func TestExamineStopsAtDeadline(t *testing.T) {
	t.Parallel()
	cfg := examined(t, "trap '' TERM; while :; do sleep 1; done", "")
	cfg.Settings.Supervision.ShutdownGrace = 5 * time.Minute
	c := bridge.NewLocal(cfg).Scan(t.Context()).Candidates[0]
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	if trial := bridge.NewLocal(cfg).Examine(ctx, c, c.Manifest); trial.Err == nil {
		t.Error("no error")
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %s", took)
	}
}

func TestCheck(t *testing.T) {
	cfg := examined(t, "", "env = { A = \"${NOT_SET_ANYWHERE}\" }\n[requires]\nbins = [\"no-such-program\"]\nenv = [\"NOT_SET_EITHER\"]\n")
	c := bridge.NewLocal(cfg).Scan(t.Context()).Candidates[0]
	p := bridge.NewLocal(cfg).Check(c, c.Manifest)
	if p.Err != nil || !p.Gated || !slices.Equal(p.Missing.MissingBins, []string{"no-such-program"}) ||
		!slices.Equal(p.Missing.MissingEnv, []string{"NOT_SET_ANYWHERE", "NOT_SET_EITHER"}) {
		t.Errorf("%+v", p)
	}
	if !slices.Contains(p.Stripped, "ONE_TOKEN") {
		t.Errorf("stripped: %q", p.Stripped)
	}
	if entries, err := os.ReadDir(cfg.StateDir); err != nil || len(entries) > 0 {
		t.Errorf("it left something in the state directory: %v %v", entries, err)
	}
	cfg.Settings.Gating = config.Warn
	if bridge.NewLocal(cfg).Check(c, c.Manifest).Gated {
		t.Error("gated although gating is warn")
	}
}
