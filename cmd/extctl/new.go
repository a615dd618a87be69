package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/mod/semver"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/natsd/storelock"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// newTemplates has the files of new projects. The suffix .tmpl keeps go build and go list from reading the files; those
// without it are copied.
//
//go:embed new_templates
var newTemplates embed.FS

// newLang is a language of new.
type newLang struct {
	name    string
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

var newLanguages = []newLang{
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

// newOptions are the flags of new.
type newOptions struct {
	lang, dir, transport string
	mcp                  bool
}

// newJSON is the output of new.
type newJSON struct {
	header
	ID         string   `json:"id"`
	Lang       string   `json:"lang"`
	Transport  string   `json:"transport"`
	MCP        bool     `json:"mcp"`
	Path       string   `json:"path"`
	Files      []string `json:"files"`
	AllowWrite string   `json:"allow_write"` // the variable that the destructive tool requires
}

func newCmd(a *app) *cobra.Command {
	var o newOptions
	var names []string
	for _, l := range newLanguages {
		names = append(names, l.name)
	}
	cmd := &cobra.Command{
		Use:   "new NAME --lang " + strings.Join(names, "|"),
		Short: "Create an extension: a directory with two tools, a manifest and a test",
		Long: `Create a directory NAME with a working extension: a manifest, a tool that reads, a destructive tool that
requires <NAME>_ALLOW_WRITE, and a test. It needs nothing but its language.

With --mcp the program is an MCP server, which also works in MCP clients (python, node, typescript). With --transport http
it is a server that a bridge calls (python, node, typescript), with --transport nats a service on NATS without a bridge (go).`,
		Example: "  extctl new dice --lang python\n  extctl new dice --lang typescript --mcp\n  extctl doctor --runtime dice",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runNew(cmd.Context(), a, args[0], o)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&o.lang, "lang", "", "the `LANGUAGE`: "+words.Or(names))
	cmd.Flags().StringVar(&o.dir, "dir", ".", "create it in `DIR`")
	cmd.Flags().StringVar(&o.transport, "transport", "stdio", "how calls reach it: `TRANSPORT` stdio, http or nats")
	cmd.Flags().BoolVar(&o.mcp, "mcp", false, "create an MCP server")
	for flag, values := range map[string][]string{"lang": names, "transport": {"stdio", "http", "nats"}} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	}
	return cmd
}

// language returns the chosen language, if it can do what the other flags require.
func (o newOptions) language() (newLang, error) {
	var names, able []string
	for _, l := range newLanguages {
		names = append(names, l.name)
		if l.files[o.transport] != nil && (l.mcp || !o.mcp) {
			able = append(able, l.name)
		}
	}
	i := slices.IndexFunc(newLanguages, func(l newLang) bool { return l.name == o.lang || slices.Contains(l.aliases, strings.ToLower(o.lang)) })
	switch {
	case !slices.Contains([]string{"stdio", "http", "nats"}, o.transport):
		return newLang{}, usage("--transport %q: want stdio, http or nats", o.transport)
	case i < 0 && o.lang == "":
		f := fail(exitUsage, "--lang is missing: want %s", words.Or(names))
		f.hint = "for example: extctl new dice --lang python"
		return newLang{}, f
	case i < 0:
		return newLang{}, usage("--lang %q: want %s", o.lang, words.Or(names))
	case !slices.Contains(able, newLanguages[i].name):
		what := "--transport " + o.transport
		if o.mcp {
			what += " --mcp"
		}
		if len(able) == 0 {
			return newLang{}, usage("%s: there is no template for an MCP server on NATS; a bridge puts one with --transport stdio or http on the mesh", what)
		}
		return newLang{}, usage("%s: there is a template for %s only, not for %s", what, words.Or(able), newLanguages[i].name)
	}
	return newLanguages[i], nil
}

func runNew(ctx context.Context, a *app, id string, o newOptions) error {
	if err := checkLocalID(id); err != nil {
		return err
	}
	if manifest.Reserved(id) {
		f := fail(exitInvalidID, "%q is reserved for the agent and the mesh", id)
		f.hint = "choose another name, such as my-" + id
		return f
	}
	lang, err := o.language()
	if err != nil {
		return err
	}
	p := newProject(id, lang, o)
	files, err := p.make()
	if err != nil {
		return err
	}
	target := filepath.Join(o.dir, id)
	if err := write(target, files); err != nil {
		return err
	}
	if a.json {
		out := newJSON{ID: id, Lang: lang.name, Transport: o.transport, MCP: o.mcp, Path: target, AllowWrite: p.AllowWrite}
		for _, f := range files {
			out.Files = append(out.Files, f.name)
		}
		return a.printJSON(out)
	}
	if _, err := fmt.Fprintf(a.stdout, "created %s\n", target); err != nil {
		return err
	}
	p.advise(a.stderr, terminal.ShellWord(target))
	if lang.name == "typescript" {
		adviseNode(ctx, a.stderr)
	}
	return nil
}

// project is what the templates of one new extension contain.
type project struct {
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

func newProject(id string, l newLang, o newOptions) project {
	allow := strings.ToUpper(strings.ReplaceAll(id, "-", "_")) + "_ALLOW_WRITE"
	p := project{
		ID: id, Lang: l.name, Transport: o.transport, MCP: o.mcp, AllowWrite: allow, SecretLike: gate.SecretLike(allow),
		AllowHint: "set " + allow + "=1 in the environment of the bridge, and restart it", StateHint: "a bridge sets it",
		Greet: wire.ToolName(id, "greet"), Ext: map[bool]string{false: "mjs", true: "ts"}[l.name == "typescript"],
		Command: l.command, Args: tomlList(l.args), Bins: tomlList(l.bins),
		Start: l.command + " " + strings.Join(l.args, " "), Test: l.command + " " + strings.Join(l.test, " "),
		templates: append([]string{"README.md", manifest.FileName}, l.files[o.transport]...),
	}
	if o.transport != "stdio" {
		p.AllowHint, p.StateHint = "set "+allow+"=1 in the environment of this program", "set it to the directory with its files"
	}
	return p
}

func tomlList(words []string) string { return `["` + strings.Join(words, `", "`) + `"]` }

// advise prints what to do with the new extension in the directory dir.
func (p project) advise(w io.Writer, dir string) {
	up := "extctl up " + dir
	if _, running := storelock.Running(daemon.StoreDir("")); running {
		up = "extctl up --join " + dir
	}
	fmt.Fprintf(w, "\nRun its test:     cd %s && %s\n", dir, p.Test)
	switch p.Transport {
	case "http":
		fmt.Fprintf(w, "Start it:         cd %s && %s\n", dir, p.Start)
	case "nats":
		fmt.Fprintf(w, "Start it:         cd %s && NATS_URL=$(extctl url) %s\n", dir, p.Start)
	default:
		fmt.Fprintf(w, "Check it:         extctl doctor --runtime %s\n", dir)
	}
	fmt.Fprintf(w, "Run it on a mesh: %s\n", up)
}

// adviseNode prints what to do if node does not run TypeScript.
func adviseNode(ctx context.Context, w io.Writer) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "node", "--version").Output()
	if version := strings.TrimSpace(string(out)); err == nil && semver.IsValid(version) && semver.Compare(version, "v22.18.0") < 0 {
		fmt.Fprintf(w, "\nnode is %s here; TypeScript needs Node 22.18 or later. Until then, change the command in plugin.toml to npx, and args to [\"-y\", \"tsx\", \"main.ts\"].\n", terminal.Clean(version))
	}
}

// newFile is one file of a new extension.
type newFile struct {
	name string
	text []byte
}

// make executes the templates. The manifest is the last file, so that a watching bridge does not start an incomplete extension.
func (p project) make() ([]newFile, error) {
	var out []newFile
	for _, t := range p.templates {
		source, name, renamed := strings.Cut(t, " ")
		if !renamed {
			name = path.Base(source)
		}
		text, err := newTemplates.ReadFile("new_templates/" + source)
		if errors.Is(err, fs.ErrNotExist) {
			if text, err = newTemplates.ReadFile("new_templates/" + source + ".tmpl"); err == nil {
				text, err = p.execute(string(text))
			}
		}
		if err != nil {
			return nil, err
		}
		out = append(out, newFile{name, text})
	}
	i := slices.IndexFunc(out, func(f newFile) bool { return f.name == manifest.FileName })
	return append(slices.Delete(slices.Clone(out), i, i+1), out[i]), nil
}

func (p project) execute(text string) ([]byte, error) {
	t, err := template.New("").Parse(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, p)
	return b.Bytes(), err
}

// write creates the directory target with files in it, all of them or none.
func write(target string, files []newFile) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fail(exitCopyFailed, "%w", err)
	}
	if err := os.Mkdir(target, 0o755); errors.Is(err, fs.ErrExist) {
		f := fail(exitExists, "%s exists", target)
		f.hint = "choose another name, or another --dir"
		return f
	} else if err != nil {
		return fail(exitCopyFailed, "%w", err)
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(target, f.name), f.text, 0o644); err != nil {
			return fail(exitCopyFailed, "%w", errors.Join(err, os.RemoveAll(target)))
		}
	}
	return nil
}
