package gate_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/pkg/manifest"
)

func TestCheck(t *testing.T) {
	root := filepath.FromSlash("/ext/weather")
	host := gate.Host{
		LookPath: func(file string) (string, error) {
			if slices.Contains([]string{"git", filepath.Join(root, "bin", "run"), filepath.FromSlash("/opt/tool")}, file) {
				return file, nil
			}
			return "", errors.New("not found")
		},
		LookupEnv: func(name string) (string, bool) {
			v, ok := map[string]string{"SET": "s3cret-value", "EMPTY": ""}[name]
			return v, ok
		},
	}
	for _, tt := range []struct {
		name      string
		bins, env []string
		unset     []string
		want      string
	}{
		{name: "nothing required"},
		{name: "bin there", bins: []string{"git"}},
		{name: "bin missing", bins: []string{"jq"}, want: "missing bins: jq"},
		{name: "bin below root", bins: []string{"./bin/run", "bin/run"}},
		{name: "not below root", bins: []string{"./run"}, want: "missing bins: ./run"},
		{name: "a path is not looked up in PATH", bins: []string{"./git"}, want: "missing bins: ./git"},
		{name: "absolute", bins: []string{"/opt/tool", "/opt/git"}, want: "missing bins: /opt/git"},
		{name: "env set", env: []string{"SET"}},
		{name: "env unset", env: []string{"UNSET"}, want: "missing env: UNSET"},
		{name: "env empty", env: []string{"EMPTY"}, want: "missing env: EMPTY"},
		{name: "placeholder", unset: []string{"URL"}, want: "missing env: URL"},
		{name: "all at once, sorted, once",
			bins: []string{"node", "jq", "git", "jq"}, env: []string{"UNSET", "SET", "EMPTY"}, unset: []string{"BASE", "UNSET"},
			want: "missing bins: jq, node; missing env: BASE, EMPTY, UNSET"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if runtime.GOOS == "windows" && tt.name == "absolute" {
				t.Skip("/opt has no drive")
			}
			requires := manifest.Requires{Bins: slices.Clone(tt.bins), Env: slices.Clone(tt.env)}
			unset := slices.Clone(tt.unset)
			r := host.Check(requires, root, unset)
			if r.String() != tt.want || r.OK() != (tt.want == "") {
				t.Errorf("have %q, OK %t; want %q", r, r.OK(), tt.want)
			}
			if !slices.Equal(requires.Bins, tt.bins) || !slices.Equal(requires.Env, tt.env) || !slices.Equal(unset, tt.unset) {
				t.Error("the caller's lists were changed")
			}
		})
	}
}

// The real host: a program must be there and executable, on $PATH or below the root.
func TestCheckHost(t *testing.T) {
	bin, root := t.TempDir(), t.TempDir()
	suffix := ""
	if runtime.GOOS == "windows" {
		suffix = ".exe"
	}
	for path, mode := range map[string]os.FileMode{
		filepath.Join(bin, "here"+suffix):  0o755,
		filepath.Join(bin, "plain"):        0o644,
		filepath.Join(root, "tool"+suffix): 0o755,
		filepath.Join(root, "text"):        0o644,
	} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(bin, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	t.Setenv("GATE_SET", "x")
	t.Setenv("GATE_EMPTY", "")
	requires := manifest.Requires{
		Bins: []string{"here", "./tool", "plain", "folder", "gone", "tool", "./text", "./here"},
		Env:  []string{"GATE_SET", "GATE_EMPTY", "GATE_UNSET"},
	}
	want := "missing bins: ./here, ./text, folder, gone, plain, tool; missing env: GATE_EMPTY, GATE_UNSET"
	if have := (gate.Host{}).Check(requires, root, nil).String(); have != want {
		t.Errorf("have %s\nwant %s", have, want)
	}
	t.Chdir(root) // a relative root works, even where Join leaves only a name
	if r := (gate.Host{}).Check(manifest.Requires{Bins: []string{"./tool"}}, ".", nil); !r.OK() {
		t.Errorf("relative root: %s", r)
	}
}

func TestResultIsBounded(t *testing.T) {
	var r gate.Result
	for i := range 5000 {
		r.MissingBins = append(r.MissingBins, fmt.Sprintf("bin%04d", i))
	}
	r.MissingEnv = []string{strings.Repeat("é", 4000)}
	s := r.String()
	if len(s) > 1000 || !strings.Contains(s, "bin0015 and 4984 more; missing env: é") || strings.ToValidUTF8(s, "") != s {
		t.Errorf("%d bytes: %q", len(s), s)
	}
}

// The texts and fields that operators alert on.
func TestLog(t *testing.T) {
	r := gate.Result{MissingBins: []string{"jq", "node"}}
	refused := gate.Result{NotGranted: []string{"KEY"}, Mesh: []string{"NATS_URL"}}
	for _, tt := range []struct {
		log  func(*slog.Logger)
		want string
	}{
		{func(l *slog.Logger) { gate.LogSkipped(l, "weather", r) },
			`{"level":"WARN","msg":"extension skipped: declared preconditions not satisfied","extension":"weather","missing_bins":["jq","node"],"missing_env":[],"refused":[]}`},
		{func(l *slog.Logger) { gate.LogSkipped(l, "weather", refused) },
			`{"level":"WARN","msg":"extension skipped: declared preconditions not satisfied","extension":"weather","missing_bins":[],"missing_env":[],"refused":["KEY","NATS_URL"]}`},
		{func(l *slog.Logger) { gate.LogContinuing(l, "weather", gate.Result{MissingEnv: []string{"API_TOKEN"}}) },
			`{"level":"WARN","msg":"extension preflight: declared requires not satisfied (continuing anyway)","extension":"weather","missing_bins":[],"missing_env":["API_TOKEN"]}`},
		{func(l *slog.Logger) { gate.LogSkillDisabled(l, "pdf", r) },
			`{"level":"WARN","msg":"skill disabled: missing bins: jq, node","skill":"pdf","missing_bins":["jq","node"],"missing_env":[]}`},
	} {
		var out bytes.Buffer
		tt.log(slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})))
		if have := strings.TrimSpace(out.String()); have != tt.want {
			t.Errorf("have %s\nwant %s", have, tt.want)
		}
	}
}
