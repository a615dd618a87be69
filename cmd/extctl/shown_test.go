package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// shownCommand matches a command line of extctl in a text: up to what ends it in a sentence.
var shownCommand = regexp.MustCompile("extctl( [a-z-][^`;:()|\n]*)")

// shownCommands calls f with every command line of extctl that a text of this program shows: in hints, errors and help.
func shownCommands(t *testing.T, f func(file, text string)) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range shownCommand.FindAllStringSubmatchIndex(text, -1) {
				command := text[m[2]:m[3]]
				if m[3] < len(text) { // otherwise the code appends a value after a space
					command = strings.TrimRight(command, " ")
				}
				if isCommand(command) {
					f(name, command)
				}
			}
			return true
		})
	}
}

// TestShownCommands parses every command line that is shown. The verb must exist, and so must each flag.
func TestShownCommands(t *testing.T) {
	shown := 0
	shownCommands(t, func(file, text string) {
		shown++
		checkShown(t, file, text)
	})
	if shown < 30 {
		t.Errorf("%d commands are shown; have the texts moved?", shown)
	}
}

// glued is a value that the code appends to a word: it begins with a space.
var glued = regexp.MustCompile(`(\w)%s`)

// isCommand reports whether a text after the word extctl begins like a command, not like the rest of a sentence.
func isCommand(text string) bool {
	first := strings.Trim(strings.Fields(text)[0], ",.?")
	switch first {
	case "has", "is", "was", "uses", "itself", "prints", "in", "and", "finds", "shows", "requires", "would", "with", "takes", "reads", "does", "warning", "a", "the", "from", "to", "tries", "does-not":
		return false
	}
	return true
}

// checkShown parses the longest part of a text that is a command line. What follows may be the rest of a sentence, but not a
// flag.
func checkShown(t *testing.T, file, text string) {
	t.Helper()
	words := strings.Fields(strings.NewReplacer("%[1]s", "x", "%s", "x", "%q", "x", "%d", "1", "%v", "x", "'", "", ",", " , ").Replace(glued.ReplaceAllString(text, "$1")))
	for i := range words {
		words[i] = strings.TrimRight(words[i], ".?")
	}
	var first error
	for n := len(words); n > 0; n-- {
		line := words[:n]
		if strings.HasPrefix(line[n-1], "--") { // the code appends the value
			line = append(line[:n:n], "1s")
		}
		err := parseLine(words[:n])
		if err != nil {
			err = parseLine(line)
		}
		if err == nil {
			for _, w := range words[n:] {
				if strings.HasPrefix(w, "--") && first != nil {
					t.Errorf("%s: extctl%s: %v", file, text, first)
				}
			}
			return
		}
		if first == nil {
			first = err
		}
	}
	if err := parseLine([]string{words[0], "--help"}); err != nil && len(words) > 0 {
		if _, _, found := rootCmd(&app{}).Find(words[:1]); found != nil {
			t.Errorf("%s: extctl%s: %v", file, text, first)
		}
	}
}
