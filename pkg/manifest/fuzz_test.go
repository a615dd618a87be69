package manifest

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"golang.org/x/tools/txtar"
)

// seed adds the files with the extension ext in the golden archives to f.
func seed(f *testing.F, glob, ext string) {
	paths, err := filepath.Glob(glob)
	if err != nil || len(paths) == 0 {
		f.Fatalf("no seeds at %s: %v", glob, err)
	}
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range a.Files {
			if strings.HasSuffix(file.Name, ext) {
				f.Add(file.Data)
			}
		}
	}
}

// positions checks that the position of every diagnostic is in the text.
func positions(t *testing.T, diags []Diagnostic, data []byte) {
	t.Helper()
	text := strings.Split(strings.TrimPrefix(string(data), "\xef\xbb\xbf"), "\n")
	for _, d := range diags {
		if d.Message == "" || d.Line < 0 || d.Line > len(text) || d.Line > 0 && (d.Column < 1 || d.Column > len(text[d.Line-1])+1) {
			t.Errorf("%v has a position outside the file", d)
		}
	}
}

func FuzzParse(f *testing.F) {
	seed(f, "testdata/rules/*.txtar", ".toml")
	validator, err := parsedSchema(f).Resolve(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, diags := Parse("p", data, Options{AgentVersion: "1.0.0"})
		if (m == nil) != HasErrors(diags) {
			t.Fatalf("manifest is nil: %v, errors: %v", m == nil, HasErrors(diags))
		}
		positions(t, diags, data)
		if m != nil {
			tree, err := decode(string(data))
			if err == nil {
				err = validator.Validate(tree)
			}
			if err != nil {
				t.Errorf("the schema rejects what Parse accepts: %v", err)
			}
			for _, n := range append(m.Members(), m) {
				n.Variables()
				if _, _, err := n.Resolve(nothing); err != nil && strings.Contains(err.Error(), "is not a placeholder") {
					t.Errorf("Parse let pass %v", err)
				}
			}
		}
	})
}

// decode decodes a TOML file for the schema.
func decode(text string) (tree map[string]any, err error) {
	_, err = toml.Decode(strings.TrimPrefix(text, "\xef\xbb\xbf"), &tree)
	return tree, err
}

// nothing is an Expander without variables and files.
var nothing = Expander{
	Root:      "/root",
	LookupEnv: func(string) (string, bool) { return "", false },
	ReadFile:  func(string) ([]byte, error) { return nil, nil },
}

func FuzzSidecar(f *testing.F) {
	seed(f, "testdata/sidecars/*.txtar", ".json")
	f.Fuzz(func(t *testing.T, data []byte) {
		m, diags := ParseSidecar("dir", "p", data, Options{})
		if (m == nil) != HasErrors(diags) {
			t.Fatalf("manifest is nil: %v, errors: %v", m == nil, HasErrors(diags))
		}
		positions(t, diags, data)
		if m == nil {
			return
		}
		for name, s := range m.MCPServers {
			if !idSyntax.MatchString(name) || s.Type != Stdio && s.Type != HTTP || blank(s.Command+s.URL) {
				t.Errorf("%q: %+v", name, s)
			}
		}
	})
}

func FuzzSkill(f *testing.F) {
	seed(f, "testdata/skills/*.txtar", ".md")
	f.Fuzz(func(t *testing.T, data []byte) {
		s, diags := ParseSkill("p", data)
		if (s == nil) != HasErrors(diags) {
			t.Errorf("skill is nil: %v, errors: %v", s == nil, HasErrors(diags))
		}
		positions(t, diags, data)
		if s != nil && s.MaxChars > 0 && len([]rune(s.Body)) > s.MaxChars {
			t.Errorf("the body has %d characters, max_chars is %d", len([]rune(s.Body)), s.MaxChars)
		}
	})
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"", "a", "$", "${A}", "$${A}", "${A:-b}", "${file:x}", "${", "${A:-${B}}", "${EXTENSION_ROOT}/x", "${U}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e := nothing
		e.LookupEnv = func(name string) (string, bool) { return "${A}$${", name != "U" }
		out, missing, err := e.Expand(s)
		if err != nil {
			return
		}
		if !strings.Contains(s, "$") && out != s {
			t.Errorf("Expand(%q) = %q", s, out)
		}
		if slices.ContainsFunc(missing, func(name string) bool { return name != "U" }) {
			t.Errorf("Expand(%q): missing %q", s, missing)
		}
		// If every "${" in a value is escaped, the result is that value.
		escaped := strings.ReplaceAll(s, "${", "$${")
		if again, _, err := e.Expand(escaped); err != nil || !strings.HasSuffix(s, "$") && !strings.Contains(s, "$$") && again != s {
			t.Errorf("Expand(%q) = %q, %v; want %q", escaped, again, err, s)
		}
	})
}
