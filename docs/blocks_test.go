package docs_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// tried names the test that runs or parses the fenced blocks of a page, by language and kind. Blocks without a language
// are output or drawings.
var tried = map[string]map[string]string{
	"../README.md": {"toml": "TestManifestsOnPages", "json": "TestMCPPage", "sh up": "e2e: TestReadme", "sh use": "e2e: TestReadme",
		"sh nats": "e2e: TestReadme", "sh new": "e2e: TestReadme", "sh apart": "e2e: TestReadme", "sh dice": "e2e: TestReadme", "sh call": "e2e: TestReadme", "python": "e2e: TestReadme"},
	"calling-tools.md": {
		"go call": "TestCalling", "sh call": "TestCalling", "python call": "TestCalling", "js call": "e2e, interop: TestNodeCaller",
	},
	"configuration.md": {"yaml": "internal/config: TestPage"},
	"extctl.md":        {"json": "cmd/extctl: its scripts"},
	"manifest.md":      {"toml": "TestManifestsOnPages", "json": "TestManifestsOnPages"},
	"mcp.md": {"sh import": "TestMCPPage", "sh install": "TestMCPPage", "sh up": "TestMCPPage", "sh http": "TestMCPPage", "json entry": "TestMCPPage", "json url": "TestMCPPage",
		"toml entry": "TestMCPPage", "yaml profiles": "TestMCPPage", "yaml tokens": "TestMCPPage"},
	"operations.md": {"conf hub": "TestLeafNodes", "conf leaf": "TestLeafNodes"},
	"protocol.md": {
		"sh": "TestShellExtension", "python": "TestPythonCaller",
		"json": "TestExamples", "json request": "TestExamples", "json response": "TestExamples", "json error": "TestExamples",
		"json cancel": "TestExamples", "json progress": "TestExamples", "json end": "TestExamples", "json meta": "TestExamples",
		"json hook": "TestExamples", "json event": "pkg/mesh: TestEventsOnPage", "json announce": "TestExamples", "json inventory": "TestExamples",
		"json heartbeat": "TestExamples", "json shutdown": "TestExamples", "json spec": "TestExamples", "json state": "TestExamples",
		"json skill": "TestExamples", "json skills": "TestExamples", "json host": "TestExamples",
	},
	"running-a-fleet.md": {"sh fleet": "TestRunningAFleet"},
	"writing-an-extension.md": {
		"go dice": "TestDice", "js dice": "TestDice", "python dice": "TestDice", "sh dice": "TestDice",
		"go service": "TestService", "toml": "TestManifestsOnPages", "json": "TestManifestsOnPages",
	},
}

// TestBlocks finds blocks that no test runs or parses: sooner or later they are wrong.
func TestBlocks(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../README.md") {
		for _, f := range fences(read(t, page)) {
			kind := strings.TrimSpace(f.lang + " " + f.kind)
			if f.lang != "" && tried[page][kind] == "" {
				t.Errorf("%s, line %d: no test runs blocks of %q; add it to tried", page, f.line, kind)
			}
		}
	}
}

// TestBlocksNameTests checks that the tests named in tried exist.
func TestBlocksNameTests(t *testing.T) {
	sources := map[string]string{"": "*_test.go", "e2e": "../e2e/*_test.go", "interop": "../e2e/*_test.go",
		"pkg/mesh": "../pkg/mesh/*_test.go", "internal/config": "../internal/config/*_test.go", "cmd/extctl": ""}
	for page, kinds := range tried {
		for kind, by := range kinds {
			where, name, elsewhere := strings.Cut(by, ": ")
			if !elsewhere {
				where, name = "", by
			}
			where, _, _ = strings.Cut(where, ",")
			files, err := filepath.Glob(sources[where])
			if err != nil {
				t.Fatal(err)
			}
			found := sources[where] == ""
			for _, file := range files {
				found = found || strings.Contains(read(t, file), "func "+name+"(")
			}
			if !found {
				t.Errorf("%s: the test of blocks of %q, %s, does not exist", page, kind, by)
			}
		}
	}
}
