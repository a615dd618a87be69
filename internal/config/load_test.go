package config

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/extmesh/extmesh/internal/supervise"
	"github.com/extmesh/extmesh/pkg/manifest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestRules tests every rule of extensions.yaml with its golden file testdata/rules/<rule>.txtar. ok*.yaml must parse
// without diagnostics, warn*.yaml with warnings, and bad*.yaml with errors; x.want has the diagnostics of x.yaml and
// how the result differs from the defaults.
func TestRules(t *testing.T) {
	paths, err := filepath.Glob("testdata/rules/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	t.Setenv("HOME", "/home/someone")
	t.Setenv("USERPROFILE", "/home/someone")
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { golden(t, path) })
	}
}

func golden(t *testing.T, path string) {
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wants := map[string]string{}
	for _, f := range a.Files {
		wants[f.Name] = string(f.Data)
	}
	out := &txtar.Archive{Comment: a.Comment}
	passed, failed := 0, 0
	for _, f := range a.Files {
		name, ok := strings.CutSuffix(f.Name, ".yaml")
		if !ok {
			continue
		}
		c, diags := Parse("extensions.yaml", f.Data)
		bad, silent := manifest.HasErrors(diags), len(diags) == 0
		switch {
		case strings.HasPrefix(name, "ok") && silent:
			passed++
		case strings.HasPrefix(name, "warn") && !silent && !bad:
			passed++
			failed++
		case strings.HasPrefix(name, "bad") && bad:
			failed++
		default:
			t.Errorf("%s: the result does not match the file's name: %v", f.Name, diags)
		}
		var b strings.Builder
		for _, d := range diags {
			b.WriteString(d.String() + "\n")
		}
		differences(&b, "", reflect.ValueOf(Default()), reflect.ValueOf(c))
		if got := b.String(); got != wants[name+".want"] && !*update {
			t.Errorf("%s: got\n%s\nwant\n%s", f.Name, got, wants[name+".want"])
		}
		out.Files = append(out.Files, f, txtar.File{Name: name + ".want", Data: []byte(b.String())})
	}
	if passed == 0 || failed == 0 {
		t.Errorf("a rule needs a file that passes and one that fails, have %d and %d", passed, failed)
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// differences lists the fields in which got differs from want.
func differences(b *strings.Builder, path string, want, got reflect.Value) {
	if want.Kind() != reflect.Struct {
		if !reflect.DeepEqual(want.Interface(), got.Interface()) {
			fmt.Fprintf(b, "%s = %+v\n", path, got.Interface())
		}
		return
	}
	for i := range want.NumField() {
		f := want.Type().Field(i)
		if f.Name == "Entries" {
			entries := got.Field(i).Interface().(map[string]Entry)
			var ids []string
			for id := range entries {
				ids = append(ids, id)
			}
			slices.Sort(ids)
			for _, id := range ids {
				fmt.Fprintf(b, "entry %s\n", id)
				differences(b, id, reflect.ValueOf(Entry{Supervision: defaultSupervision(), Gating: Skip}), reflect.ValueOf(entries[id]))
			}
		} else if f.Anonymous {
			differences(b, path, want.Field(i), got.Field(i))
		} else if f.IsExported() {
			differences(b, strings.TrimPrefix(path+"."+f.Name, "."), want.Field(i), got.Field(i))
		}
	}
}

// TestDefaults checks the defaults that docs/protocol.md documents.
func TestDefaults(t *testing.T) {
	want := Supervision{
		CallTimeout: 30 * time.Second, MaxCallTimeout: time.Hour,
		Policy: supervise.Policy{
			MaxRestarts: 5, RestartWindow: 5 * time.Minute, FailedRetry: 5 * time.Minute,
			BaseBackoff: time.Second, MaxBackoff: time.Minute, ResetAfter: time.Minute,
		},
		MaxLine: 64 << 20, MaxResult: 64 << 20, MaxInflight: 256, Replicas: 1,
		ShutdownGrace: 3 * time.Second, HangTimeout: 30 * time.Second,
	}
	if got := Default().SupervisionFor("any"); got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	c, diags := Parse("x", nil)
	if len(diags) > 0 || !reflect.DeepEqual(c, Default()) {
		t.Errorf("an empty file is %+v, %v; want the defaults", c, diags)
	}
}

func TestLoad(t *testing.T) {
	t.Chdir(t.TempDir())
	if c, diags := Load("", false); len(diags) > 0 || !reflect.DeepEqual(c, Default()) {
		t.Errorf("without a file: %+v, %v", c, diags)
	}
	if err := os.Mkdir("config", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("big.yaml", make([]byte, MaxFile+10), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path      string
		mustExist bool
		want      string
	}{
		{"none.yaml", true, "none.yaml: error: there is no such file"},
		{"config", false, "config: error: cannot be read: it is a directory, not a regular file"},
		{"big.yaml", true, "big.yaml: error: the file has more than 1048576 bytes (1 MiB)"},
	} {
		c, diags := Load(tt.path, tt.mustExist)
		if len(diags) != 1 || diags[0].String() != tt.want || !reflect.DeepEqual(c, Default()) {
			t.Errorf("%s: %+v, %v; want %s", tt.path, c, diags, tt.want)
		}
	}
	if err := os.WriteFile(DefaultPath, []byte("extensions: {max_depth: 7, max_dept: 7}"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, diags := Load("", true)
	if c.MaxDepth != 7 || len(diags) != 1 || diags[0].Path != DefaultPath {
		t.Errorf("%+v, %v", c, diags)
	}
}

func TestSupervision(t *testing.T) {
	c, diags := Parse("x", []byte(`
extensions:
  supervision: {call_timeout: 20s}
  entries:
    slow: {call_timeout: 10m, handshake_timeout: 10s}
    google: {replicas: 2}
    google.gmail: {max_restarts: 9}
    deaf: {hang_timeout: 0}
`))
	if len(diags) > 0 {
		t.Fatal(diags)
	}
	for _, tt := range []struct {
		id       string
		call     time.Duration
		hang     time.Duration
		replicas int
		restarts int
	}{
		{"other", 20 * time.Second, 20 * time.Second, 1, 5},
		{"slow", 10 * time.Minute, 10 * time.Minute, 1, 5},
		{"google", 20 * time.Second, 20 * time.Second, 2, 5},
		{"google.gmail", 20 * time.Second, 20 * time.Second, 2, 9},
		{"google.calendar", 20 * time.Second, 20 * time.Second, 2, 5},
		{"deaf", 20 * time.Second, 0, 1, 5},
	} {
		s := c.SupervisionFor(tt.id)
		if s.CallTimeout != tt.call || s.HangTimeout != tt.hang || s.Replicas != tt.replicas || s.MaxRestarts != tt.restarts {
			t.Errorf("%s: %+v, want %+v", tt.id, s, tt)
		}
	}
	const second = time.Second
	for _, tt := range []struct {
		id        string
		transport manifest.Transport
		want      StartLimit
	}{
		{"other", manifest.Transport{Type: manifest.Stdio, Command: "./server"}, StartLimit{30 * second, 300 * second}},
		{"other", manifest.Transport{Type: manifest.Stdio, Command: "npx", Args: []string{"-y", "server"}}, StartLimit{300 * second, 300 * second}},
		{"other", manifest.Transport{Type: manifest.HTTP}, StartLimit{30 * second, 30 * second}},
		{"other", manifest.Transport{Type: manifest.Stdio, Command: "npx", HandshakeTimeout: time.Minute}, StartLimit{60 * second, 60 * second}},
		{"other", manifest.Transport{Type: manifest.Stdio, Command: "npx", HandshakeTimeout: time.Hour}, StartLimit{300 * second, 300 * second}},
		{"slow", manifest.Transport{Type: manifest.Stdio, Command: "npx", HandshakeTimeout: time.Minute}, StartLimit{10 * second, 10 * second}}, // set by the operator
	} {
		if got := c.StartLimit(tt.id, tt.transport); got != tt.want {
			t.Errorf("%s with %+v: %+v, want %+v", tt.id, tt.transport, got, tt.want)
		}
	}
	c.Supervision.HandshakeTimeout = 20 * second // the operator's, for all
	if got := c.StartLimit("other", manifest.Transport{Type: manifest.Stdio, Command: "npx"}); got != (StartLimit{20 * second, 20 * second}) {
		t.Errorf("with a setting for all: %+v", got)
	}
}

func FuzzParse(f *testing.F) {
	paths, _ := filepath.Glob("testdata/rules/*.txtar")
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range a.Files {
			f.Add(file.Data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := strings.Split(strings.TrimPrefix(string(data), "\xef\xbb\xbf"), "\n")
		_, diags := Parse("p", data)
		for _, d := range diags {
			if d.Message == "" || d.Line < 0 || d.Line > len(lines) || d.Line > 0 && (d.Column < 1 || d.Column > len(lines[d.Line-1])+1) {
				t.Errorf("%v has a position outside the file", d)
			}
		}
	})
}
