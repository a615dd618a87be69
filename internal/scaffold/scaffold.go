// Package scaffold creates new extensions from templates: a directory with a manifest, a program with two tools, and its test.
package scaffold

import (
	"bytes"
	"embed"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// templates has the files of new projects. The suffix .tmpl keeps go build and go list from reading the files; those
// without it are copied.
//
//go:embed templates
var templates embed.FS

// Language is a language with templates.
type Language struct {
	Name    string
	aliases []string
	command string   // runs args, also those of the test
	args    []string // of the program
	test    []string
	bins    []string
	mcp     bool
	files   map[string][]string // by transport: templates, with the name of the file if it is another one
}

// extmeshJS is the helper of Node and TypeScript.
const extmeshJS = "helper/extmesh.mjs"

// Languages are the languages with templates.
var Languages = []Language{
	{"python", []string{"py", "python3"}, "python3", []string{"main.py"}, []string{"-m", "unittest"}, []string{"python3"}, true, map[string][]string{
		"stdio": {"helper/extmesh.py", "python/main.py", "python/test_main.py"}, "http": {"helper/extmesh.py", "python/main.py", "python/test_main.py"},
	}},
	{"node", []string{"js", "javascript", "nodejs", "mjs"}, "node", []string{"main.mjs"}, []string{"--test"}, []string{"node"}, true, map[string][]string{
		"stdio": {extmeshJS, "node/main.mjs", "node/tools.mjs", "node/main.test.mjs"}, "http": {extmeshJS, "node/main.mjs", "node/tools.mjs", "node/main.test.mjs"},
	}},
	{"typescript", []string{"ts"}, "node", []string{"main.ts"}, []string{"--test", "main.test.ts"}, []string{"node"}, true, map[string][]string{
		"stdio": typescriptFiles, "http": typescriptFiles,
	}},
	{"go", []string{"golang"}, "go", []string{"run", "."}, []string{"test"}, []string{"go"}, false, map[string][]string{
		"stdio": {"go/go.mod", "go/main.go", "go/main_test.go"}, "nats": {"go-nats/go.mod", "go-nats/main.go", "go-nats/main_test.go"},
	}},
	{"shell", []string{"sh", "bash"}, "sh", []string{"main.sh"}, []string{"test.sh"}, []string{"sh", "sed"}, false, map[string][]string{
		"stdio": {"shell/main.sh", "shell/test.sh"},
	}},
}

var typescriptFiles = []string{extmeshJS, "helper/extmesh.d.mts", "node/main.mjs main.ts", "node/tools.mjs tools.ts", "node/main.test.mjs main.test.ts", "typescript/package.json", "typescript/tsconfig.json"}

// Find finds a language by its name or an alias, such as py.
func Find(name string) (Language, bool) {
	i := slices.IndexFunc(Languages, func(l Language) bool { return l.Name == name || slices.Contains(l.aliases, strings.ToLower(name)) })
	if i < 0 {
		return Language{}, false
	}
	return Languages[i], true
}

// Supports reports whether there is a template for a transport (stdio, http or nats) and, with mcp, for an MCP server.
func (l Language) Supports(transport string, mcp bool) bool {
	return l.files[transport] != nil && (l.mcp || !mcp)
}

// Project is a new extension, as its templates see it.
type Project struct {
	ID, Lang, Transport string
	MCP                 bool
	AllowWrite          string // the variable that the destructive tool requires
	SecretLike          bool   // its name looks like that of a secret
	AllowHint           string // how to set it
	StateHint           string // how to set EXTMESH_STATE_DIR
	Greet               string // the tool's name on the mesh
	Ext                 string // of Node's files
	Command, Args, Bins string // in TOML
	Start, Test         string // command lines

	templates []string
}

// New plans an extension in a language that supports the transport and mcp.
func New(id string, l Language, transport string, mcp bool) Project {
	allow := strings.ToUpper(strings.ReplaceAll(id, "-", "_")) + "_ALLOW_WRITE"
	p := Project{
		ID: id, Lang: l.Name, Transport: transport, MCP: mcp, AllowWrite: allow, SecretLike: gate.Withheld(allow, ""),
		AllowHint: "set " + allow + "=1 in the environment of the bridge, see plugin.toml, and restart it", StateHint: "a bridge sets it",
		Greet: wire.ToolName(id, "greet"), Ext: map[bool]string{false: "mjs", true: "ts"}[l.Name == "typescript"],
		Command: l.command, Args: tomlList(l.args), Bins: tomlList(l.bins),
		Start: l.command + " " + strings.Join(l.args, " "), Test: l.command + " " + strings.Join(l.test, " "),
		templates: append([]string{"README.md", manifest.FileName}, l.files[transport]...),
	}
	if transport != "stdio" {
		p.AllowHint, p.StateHint = "set "+allow+"=1 in the environment of this program", "set it to the directory with its files"
	}
	return p
}

func tomlList(words []string) string { return `["` + strings.Join(words, `", "`) + `"]` }

// file is one file of a new extension.
type file struct {
	name string
	text []byte
}

// make executes the templates. The manifest is the last file, so that a watching bridge does not start an incomplete extension.
func (p Project) make() ([]file, error) {
	var out []file
	for _, t := range p.templates {
		source, name, renamed := strings.Cut(t, " ")
		if !renamed {
			name = path.Base(source)
		}
		text, err := templates.ReadFile("templates/" + source)
		if errors.Is(err, fs.ErrNotExist) {
			if text, err = templates.ReadFile("templates/" + source + ".tmpl"); err == nil {
				text, err = p.execute(string(text))
			}
		}
		if err != nil {
			return nil, err
		}
		out = append(out, file{name, text})
	}
	i := slices.IndexFunc(out, func(f file) bool { return f.name == manifest.FileName })
	return append(slices.Delete(slices.Clone(out), i, i+1), out[i]), nil
}

func (p Project) execute(text string) ([]byte, error) {
	t, err := template.New("").Parse(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, p)
	return b.Bytes(), err
}

// Write creates the directory dir with the files, all of them or none, and returns their names. The error is fs.ErrExist if
// dir exists.
func (p Project) Write(dir string) (names []string, err error) {
	files, err := p.make()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.name), f.text, 0o644); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
		names = append(names, f.name)
	}
	return names, nil
}
