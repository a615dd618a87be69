package manifest

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"golang.org/x/tools/txtar"

	"github.com/extmesh/extmesh/internal/document"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestRules tests every rule of plugin.toml with its golden file testdata/rules/<rule>.txtar. ok*.toml must parse
// without diagnostics, warn*.toml with warnings, and bad*.toml must be refused; x.want has the diagnostics of x.toml
// and whether the schema accepts it. x.mcp.json is the sidecar of x.toml. The archive's comment may set options, as
// lines "agent_version: 1.0.0", "reserved_ids: a b" and "programs: ./a ./b".
func TestRules(t *testing.T) {
	validator, err := parsedSchema(t).Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/rules/*.txtar", ".toml", func(t *testing.T, a *txtar.Archive, f txtar.File) (string, []Diagnostic) {
		m, diags := Parse("plugin.toml", f.Data, options(a, f.Name))
		if (m == nil) != HasErrors(diags) {
			t.Errorf("%s: manifest is nil: %v, but errors: %v", f.Name, m == nil, HasErrors(diags))
		}
		tree, err := decode(string(f.Data))
		if err != nil {
			return "", diags
		}
		if err := validator.Validate(tree); err == nil {
			return "schema: accepts\n", diags
		} else if m != nil {
			t.Errorf("%s: Parse accepts what the schema rejects: %v", f.Name, err)
		}
		return "schema: rejects\n", diags
	})
}

// TestSidecars does the same for .mcp.json without a plugin.toml; x.want also lists the servers that are used.
func TestSidecars(t *testing.T) {
	golden(t, "testdata/sidecars/*.txtar", ".json", func(t *testing.T, a *txtar.Archive, f txtar.File) (string, []Diagnostic) {
		m, diags := ParseSidecar(dirOf(a), ".mcp.json", f.Data, Options{ReservedIDs: []string{"taken"}})
		if (m == nil) != HasErrors(diags) {
			t.Errorf("%s: manifest is nil: %v, but errors: %v", f.Name, m == nil, HasErrors(diags))
		}
		if m == nil {
			return "", diags
		}
		var b strings.Builder
		fmt.Fprintf(&b, "id: %s\n", m.Plugin.ID)
		for _, name := range slices.Sorted(maps.Keys(m.MCPServers)) {
			server := m.MCPServers[name]
			fmt.Fprintf(&b, "%s: %s\n", name, asJSON(t, server))
			if server.Cwd != "" { // is not in the JSON
				fmt.Fprintf(&b, "%s: cwd %s\n", name, server.Cwd)
			}
		}
		return b.String(), diags
	})
}

// dirOf returns the directory in the archive's comment, as a line "dir: name".
func dirOf(a *txtar.Archive) string {
	for line := range strings.Lines(string(a.Comment)) {
		if v, ok := strings.CutPrefix(line, "dir: "); ok {
			return strings.TrimSpace(v)
		}
	}
	return "clients"
}

// TestSkills does the same for SKILL.md; x.want also contains the skill.
func TestSkills(t *testing.T) {
	golden(t, "testdata/skills/*.txtar", ".md", func(t *testing.T, a *txtar.Archive, f txtar.File) (string, []Diagnostic) {
		s, diags := ParseSkill("SKILL.md", f.Data)
		if (s == nil) != HasErrors(diags) {
			t.Errorf("%s: skill is nil: %v, but errors: %v", f.Name, s == nil, HasErrors(diags))
		}
		if s == nil {
			return "", diags
		}
		return asJSON(t, s) + "\n", diags
	})
}

// golden runs parse on each file with the extension ext in the archives, and compares the result with the archive's
// .want files.
func golden(t *testing.T, glob, ext string, parse func(*testing.T, *txtar.Archive, txtar.File) (string, []Diagnostic)) {
	paths, err := filepath.Glob(glob)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files at %s: %v", glob, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			out := &txtar.Archive{Comment: a.Comment}
			levels := map[string]int{}
			for _, f := range a.Files {
				name, ok := strings.CutSuffix(f.Name, ext)
				if strings.HasSuffix(f.Name, ".want") {
					continue
				}
				out.Files = append(out.Files, f)
				if !ok || strings.HasSuffix(f.Name, ".mcp.json") {
					continue
				}
				result, diags := parse(t, a, f)
				levels[expected(t, f.Name, diags)]++
				got := lines(diags) + result
				if want := string(file1(a, name+".want")); got != want && !*update {
					t.Errorf("%s: got\n%s\nwant\n%s", f.Name, got, want)
				}
				out.Files = append(out.Files, txtar.File{Name: name + ".want", Data: []byte(got)})
			}
			if levels["ok"]+levels["warn"] == 0 || levels["bad"]+levels["warn"] == 0 {
				t.Errorf("a rule needs a file that passes and one that fails, have %v", levels)
			}
			if *update {
				if err := os.WriteFile(path, txtar.Format(out), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// expected checks that the diagnostics match the file's name (ok, warn or bad), and returns which it is.
func expected(t *testing.T, name string, diags []Diagnostic) string {
	t.Helper()
	warned := slices.ContainsFunc(diags, func(d Diagnostic) bool { return d.Level == Warn })
	switch kind := strings.TrimRight(strings.SplitN(name, ".", 2)[0], "-_0123456789abcdefghijklmnopqrstuvwxyz"); {
	default:
		t.Errorf("%s: call it ok, warn or bad (kind %q)", name, kind)
	case strings.HasPrefix(name, "ok"):
		if HasErrors(diags) || warned {
			t.Errorf("%s: want no diagnostics, got\n%s", name, lines(diags))
		}
		return "ok"
	case strings.HasPrefix(name, "warn"):
		if HasErrors(diags) || !warned {
			t.Errorf("%s: want warnings, got\n%s", name, lines(diags))
		}
		return "warn"
	case strings.HasPrefix(name, "bad"):
		if !HasErrors(diags) {
			t.Errorf("%s: want errors, got\n%s", name, lines(diags))
		}
		return "bad"
	}
	return ""
}

func options(a *txtar.Archive, name string) (opt Options) {
	for line := range strings.Lines(string(a.Comment)) {
		if v, ok := strings.CutPrefix(line, "agent_version: "); ok {
			opt.AgentVersion = strings.TrimSpace(v)
		} else if v, ok := strings.CutPrefix(line, "reserved_ids: "); ok {
			opt.ReservedIDs = strings.Fields(v)
		} else if v, ok := strings.CutPrefix(line, "programs: "); ok {
			opt.Program = func(command, cwd string) string {
				if slices.Contains(strings.Fields(v), command) && cwd == "" {
					return ""
				}
				return "is not in " + document.Show(cwd)
			}
		}
	}
	if data := file1(a, strings.TrimSuffix(name, ".toml")+".mcp.json"); data != nil {
		opt.Sidecar = &Sidecar{Path: ".mcp.json", Data: data}
	}
	return opt
}

func file1(a *txtar.Archive, name string) []byte {
	for _, f := range a.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

func lines(diags []Diagnostic) string {
	var b strings.Builder
	for _, d := range diags {
		b.WriteString(d.String() + "\n")
	}
	return b.String()
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(b.String())
}

// parsedSchema is the schema of plugin.toml.
func parsedSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	s := new(jsonschema.Schema)
	if err := json.Unmarshal(Schema(), s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSchemaKeys fails if the schema and Parse accept different keys.
func TestSchemaKeys(t *testing.T) {
	s := parsedSchema(t)
	var visit func(path string, s *jsonschema.Schema)
	visit = func(path string, s *jsonschema.Schema) {
		var b strings.Builder
		for _, key := range slices.Sorted(maps.Keys(s.Properties)) {
			fmt.Fprintf(&b, "%s = 1979-05-27\n", key) // a type that no key has
		}
		header := ""
		if path != "" {
			header = "[" + path + "]\n"
		}
		_, diags := Parse("plugin.toml", []byte(header+b.String()+"unheard-of = 1\n"), Options{})
		var unknown []string
		for _, d := range diags {
			if strings.HasPrefix(d.Message, "unknown key") {
				unknown = append(unknown, d.Key)
			}
		}
		if want := []string{document.Join(path, "unheard-of")}; !slices.Equal(unknown, want) {
			t.Errorf("[%s]: Parse reports %q as unknown, want %q", path, unknown, want)
		}
		for key, sub := range s.Properties {
			if len(sub.Properties) > 0 {
				visit(document.Join(path, key), sub)
			}
		}
	}
	visit("", s)
	visit("mcp_servers.gmail", s.Properties["mcp_servers"].AdditionalProperties)
}
