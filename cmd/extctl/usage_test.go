package main

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestMissingArguments: the error of every command with a required argument names it, with a valid example.
func TestMissingArguments(t *testing.T) {
	a := &app{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard, getenv: func(string) string { return "" }}
	var visit func(*cobra.Command)
	checked := 0
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
		if cmd.Args == nil || cmd.Args(cmd, nil) == nil {
			return
		}
		checked++
		f, ok := cmd.Args(cmd, nil).(*failure)
		if !ok || f.code != exitUsage || !strings.Contains(f.Error(), " is missing: extctl ") {
			t.Errorf("%s: %v", cmd.CommandPath(), f)
			return
		}
		example, ok := strings.CutPrefix(f.hint, "for example: "+cmd.CommandPath()+" ")
		if !ok || strings.Contains(example, "--help") {
			t.Errorf("%s: %q is not an example", cmd.CommandPath(), f.hint)
		} else if err := cmd.Args(cmd, strings.Fields(example)[:1]); err != nil {
			t.Errorf("%s: %q: %v", cmd.CommandPath(), f.hint, err)
		}
	}
	visit(rootCmd(a))
	if checked < 15 {
		t.Errorf("%d commands require an argument", checked)
	}
}

// TestFlagDescriptions: a shell is given no backticks, and --help has a placeholder instead.
func TestFlagDescriptions(t *testing.T) {
	for line, want := range map[string]string{
		"__complete mcp --":         "--tools\tMODE of offering: ",
		"__complete mcp preview --": "--only\toffer only what matches PATTERN: ",
		"__complete list --":        "--timeout\tgive up after DURATION, ",
		"mcp --help":                "--tools MODE ",
	} {
		var stdout strings.Builder
		run(t.Context(), strings.Fields(line), strings.NewReader(""), &stdout, io.Discard, func(string) string { return "" })
		if out := stdout.String(); strings.Contains(out, "`") || !strings.Contains(out, want) {
			t.Errorf("%s prints\n%s", line, out)
		}
	}
}

// TestHelpText: help texts contain no tabs, which a multi-line literal in indented code easily gets.
func TestHelpText(t *testing.T) {
	for _, v := range verbs {
		cmd := v.make(&app{})
		for _, c := range append(cmd.Commands(), cmd) {
			if text := c.Short + c.Long + c.Example; strings.Contains(text, "\t") || c.Short == "" {
				t.Errorf("%s: %q", c.CommandPath(), text)
			}
		}
	}
}
