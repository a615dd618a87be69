package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/adrg/xdg"
)

// shownFixture is an extension of the mesh on which TestShownCommandsRun runs the commands: a tool for each name that they
// contain.
func shownFixture(id, tool string) string {
	text := strings.NewReplacer(`"echo"`, `"`+id+`"`, "say", tool, `"required":["what"]`, `"required":[]`).Replace(shellExtension)
	list := regexp.MustCompile(`"tools":\[.*\](?:,"hooks")`).FindString(text)
	return strings.Replace(text, "\t*) r=", "\t*tools/list*) r='{"+strings.TrimSuffix(list, `,"hooks"`)+"}' ;;\n\t*) r=", 1)
}

// shownElsewhere are commands that this test does not run, because other tests do: they run until they are stopped, or they
// change the files of the user's programs.
var shownElsewhere = regexp.MustCompile(`^(up\b|mcp( --|$)|top|undrain$|import all|mcp (un)?install)`)

// shownCodes are the exit codes of commands that have nothing to do here, or that require a confirmation.
var shownCodes = []struct {
	line  *regexp.Regexp
	codes []int
}{
	{regexp.MustCompile(`^(watch|tap)| -f\b| --watch`), []int{exitTimeout}}, // until the time given here
	{regexp.MustCompile(`^(drain|uninstall)`), []int{exitOK, exitNeedsYes}},
	{regexp.MustCompile(`^import`), []int{exitOK, exitNotFound}}, // no MCP client is installed here
	{regexp.MustCompile(`^forget`), []int{exitOther}},            // it runs
	{regexp.MustCompile(`^url --data`), []int{exitNoNATS}},
	{regexp.MustCompile(`^install`), []int{exitOK, exitExists, exitIDCollision}}, // after another one
}

// TestShownCommandsRun runs every command line that a hint, an error or a help text shows, on a mesh that has all that they
// name. An upper-case word, and what the code inserts, is x: an extension, its tool, its bridge and its directory.
func TestShownCommandsRun(t *testing.T) {
	manifests := map[string]string{}
	for id, tool := range map[string]string{"x": "x", "hello": "greet", "weather": "today", "clock": "now", "textkit": "wordcount"} {
		manifests[id] = shownFixture(id, tool)
	}
	home := t.TempDir()
	lines := shownLines(t, home)
	mesh, here := extensionDir(t, manifests), extensionDir(t, manifests)
	local := filepath.Join(here, "extensions")
	for dir, from := range map[string]string{filepath.Join(local, "x"): filepath.Join(mesh, "x"), filepath.Join(local, "hello"): filepath.Join(mesh, "hello"), filepath.Join(home, "src"): mesh} {
		if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range map[string]string{"HOME": home, "XDG_DATA_HOME": home, "XDG_CONFIG_HOME": home, "NATS_URL": ""} {
		t.Setenv(name, value)
	}
	xdg.Reload()
	t.Cleanup(xdg.Reload)
	settings := filepath.Join(home, "up.yaml")
	if err := os.WriteFile(settings, []byte("extensions:\n  entries:\n    weather: {replicas: 2}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(here, ".vscode"), 0o700), os.WriteFile(filepath.Join(here, ".vscode", "mcp.json"), []byte(`{"servers":{}}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Chdir(here)
	u := startUp(t, "--listen", "0", "--name", "x", "--config", settings, mesh)
	u.await(t, "Ctrl-C stops everything")
	for _, line := range lines {
		text, codes := strings.Join(line, " "), []int{exitOK}
		for _, c := range shownCodes {
			if c.line.MatchString(text) {
				codes = c.codes
			}
		}
		if _, err := os.Stat("dice"); err == nil && line[0] == "new" { // every example makes an extension of this name
			line = append(line, "--dir", t.TempDir())
		}
		var out, errs bytes.Buffer
		code := -1
		withTimeouts(func(timeout string) bool {
			if !slices.Contains(codes, exitTimeout) {
				timeout = "1m"
			}
			out.Reset()
			errs.Reset()
			code = run(t.Context(), append([]string{"--timeout", timeout}, line...), strings.NewReader(manifests["x"]), &out, &errs, os.Getenv)
			return timeout == "1m" || code == exitTimeout
		})
		if !slices.Contains(codes, code) {
			t.Errorf("extctl %s: exit code %d, want %v\n%s%s", text, code, codes, &out, &errs)
		}
	}
}

// sentence matches the words after which a text is no longer a command line.
var sentence = regexp.MustCompile(`^(shows|prints|lists|begins|has|is|was|with|at|on|or|makes|undoes|undo|restores|offers|takes|and|which|starts|listens|that|gives|names|[,<>]|[(].*)$`)

// shownWords matches a word, which may contain quotes.
var shownWords = regexp.MustCompile(`(?:'[^']*'|[^\s'])+`)

// shownLines are the commands that are shown, each once. home replaces ~.
func shownLines(t *testing.T, home string) (lines [][]string) {
	t.Helper()
	seen := map[string]bool{}
	add := func(_, text string) {
		if strings.HasSuffix(text, " ") { // the code appends a value
			text += "x"
		}
		if strings.Count(text, "'")%2 != 0 { // cut off by what ends a command in a sentence
			return
		}
		text = strings.NewReplacer("%[1]s", "x", "%s", "x", "%q", "x", "web-1", "x", "web-2", "x", "--duration 5s", "--duration 50ms", ",", " , ").Replace(glued.ReplaceAllString(text, "$1"))
		var words []string
		for _, w := range shownWords.FindAllString(text, -1) {
			end := strings.HasSuffix(w, ".") && w != "."
			if w = strings.ReplaceAll(strings.TrimRight(w, ".?"), "'", ""); sentence.MatchString(w) {
				break
			}
			if w == strings.ToUpper(w) && strings.ToLower(w) != w {
				w = "x"
			}
			if words = append(words, strings.Replace(w, "~", home, 1)); end {
				break
			}
		}
		line := strings.Join(words, " ")
		_, rest, err := rootCmd(&app{}).Find(words)
		mention := err == nil && len(rest) == 0 && parseLine(words) != nil // of a verb that takes arguments
		if len(words) == 0 || mention || seen[line] || shownElsewhere.MatchString(line) {
			return
		}
		seen[line] = true
		lines = append(lines, words)
	}
	shownCommands(t, add)
	for _, cmd := range rootCmd(&app{}).Commands() { // what a missing argument is explained with
		if text, ok := strings.CutPrefix(strings.TrimSpace(exampleOf(cmd)), "extctl"); ok {
			add("", text)
		}
	}
	if len(lines) < 80 {
		t.Errorf("%d commands are shown; have the texts moved?", len(lines))
	}
	return lines
}
