package main

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestExtctlPage compares docs/extctl.md with the code: every exit code with its kind, and every command with its JSON.
func TestExtctlPage(t *testing.T) {
	data, err := os.ReadFile("../../docs/extctl.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	listed := map[int]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| ([^|]*)\|`).FindAllStringSubmatch(page, -1) {
		code, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		listed[code] = m[2]
	}
	for code, kind := range kinds {
		if !strings.Contains(listed[code], "`"+kind+"`") {
			t.Errorf("exit code %d is %s, and the page says %q", code, kind, listed[code])
		}
		delete(listed, code)
	}
	if delete(listed, exitOK); len(listed) > 0 {
		t.Errorf("the page lists unknown codes: %v", listed)
	}
	_, shapes, _ := strings.Cut(page, "\n## JSON\n")
	shapes, _, _ = strings.Cut(shapes, "\n## ")
	for _, v := range verbs {
		cmd := v.make(&app{})
		name := cmd.Name()
		if !regexp.MustCompile("(?m)^\\|[^|]*`" + name + "[ `]").MatchString(shapes) {
			t.Errorf("the page does not describe the --json output of %s", name)
		}
	}
}
