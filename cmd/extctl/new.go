package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// newTemplates has one directory per language. The suffix .tmpl keeps go build and go list from reading the files.
//
//go:embed new_templates
var newTemplates embed.FS

// newLanguages are the languages of new with the command that runs the test.
var newLanguages = []struct{ name, test string }{
	{"go", "go test"}, {"python", "python3 -m unittest"}, {"node", "node --test"}, {"shell", "sh test.sh"},
}

// newJSON is the output of new.
type newJSON struct {
	header
	ID         string   `json:"id"`
	Lang       string   `json:"lang"`
	Path       string   `json:"path"`
	Files      []string `json:"files"`
	AllowWrite string   `json:"allow_write"` // the variable that the destructive tool requires
}

func newCmd(a *app) *cobra.Command {
	var lang, dir string
	cmd := &cobra.Command{
		Use:   "new NAME --lang go|python|node|shell",
		Short: "Create an extension: a directory with two tools, a manifest and a test",
		Long: `Create a directory NAME with a working extension: a manifest, a tool that reads, a destructive tool that
requires <NAME>_ALLOW_WRITE, and a test. It needs nothing but its language.`,
		Example: "  extctl new dice --lang python\n  extctl doctor --runtime dice",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runNew(a, args[0], lang, dir)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&lang, "lang", "", "the `LANGUAGE`: go, python, node or shell")
	cmd.Flags().StringVar(&dir, "dir", ".", "create it in `DIR`")
	_ = cmd.RegisterFlagCompletionFunc("lang", cobra.FixedCompletions([]cobra.Completion{"go", "python", "node", "shell"}, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return cmd
}

func runNew(a *app, id, lang, dir string) error {
	if err := checkLocalID(id); err != nil {
		return err
	}
	if manifest.Reserved(id) {
		f := fail(exitInvalidID, "%q is reserved for the agent and the mesh", id)
		f.hint = "choose another name, such as my-" + id
		return f
	}
	var names []string
	test := ""
	for _, l := range newLanguages {
		if names = append(names, l.name); l.name == lang {
			test = l.test
		}
	}
	if test == "" {
		return usage("--lang %q: want %s", lang, orList(names))
	}
	allow := strings.ToUpper(strings.ReplaceAll(id, "-", "_")) + "_ALLOW_WRITE"
	files, err := skeleton(lang, map[string]any{
		"ID": id, "AllowWrite": allow, "SecretLike": gate.SecretLike(allow), "Greet": wire.ToolName(id, "greet"),
	})
	if err != nil {
		return err
	}
	target := filepath.Join(dir, id)
	if err := write(target, files); err != nil {
		return err
	}
	if a.json {
		out := newJSON{ID: id, Lang: lang, Path: target, AllowWrite: allow}
		for _, f := range files {
			out.Files = append(out.Files, f.name)
		}
		return a.printJSON(out)
	}
	if _, err := fmt.Fprintf(a.stdout, "created %s\n", target); err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "\nRun its test:     cd %s && %s\nCheck it:         extctl doctor --runtime %s\nRun it on a mesh: extctl up %s\n", target, test, target, target)
	return nil
}

// newFile is one file of a new extension.
type newFile struct {
	name string
	text []byte
}

// skeleton executes the templates of a language.
func skeleton(lang string, data map[string]any) ([]newFile, error) {
	dir := path.Join("new_templates", lang)
	entries, err := newTemplates.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []newFile
	for _, e := range entries {
		text, err := newTemplates.ReadFile(path.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		t, err := template.New(e.Name()).Option("missingkey=error").Parse(string(text))
		if err != nil {
			return nil, err
		}
		var b bytes.Buffer
		if err := t.Execute(&b, data); err != nil {
			return nil, err
		}
		out = append(out, newFile{strings.TrimSuffix(e.Name(), ".tmpl"), b.Bytes()})
	}
	// The manifest is written last, so that a watching bridge does not start an incomplete extension.
	i := slices.IndexFunc(out, func(f newFile) bool { return f.name == manifest.FileName })
	return append(slices.Delete(slices.Clone(out), i, i+1), out[i]), nil
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
