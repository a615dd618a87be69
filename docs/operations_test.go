package docs_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestAlerts looks for every metric and every log message of operations.md in the sources: an alert on a message that does
// not exist never fires.
func TestAlerts(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, dir := range []string{"../internal", "../cmd", "../pkg"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				all.WriteString(read(t, path))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	sources, page := all.String(), read(t, "operations.md")
	metrics := map[string]bool{}
	for _, name := range regexp.MustCompile(`extmesh_[a-z_]+`).FindAllString(page, -1) {
		metrics[name] = true
		if !strings.Contains(sources, `"`+strings.TrimSuffix(name, "_bucket")+`"`) {
			t.Errorf("the sources have no metric %s", name)
		}
	}
	messages := 0
	for _, row := range rows(t, page, "| message | level | fields | means |") {
		for _, message := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch("`"+row[0]+"`", -1) {
			messages++
			text := strings.TrimSuffix(message[1], "…")
			ofProgram, named := strings.CutPrefix(text, "registry ") // internal/daemon prepends the program's name
			if !strings.Contains(sources, `"`+text) && !(named && strings.Contains(sources, `+" `+ofProgram)) {
				t.Errorf("the sources have no log message %q", message[1])
			}
		}
		for _, field := range strings.Fields(strings.ReplaceAll(row[2], "`", " ")) {
			if field != "the" && field != "same" && !strings.Contains(sources, `"`+field+`"`) {
				t.Errorf("%s: there is no field %q", row[0], field)
			}
		}
	}
	if len(metrics) < 10 || messages < 10 {
		t.Errorf("found only %d metrics and %d messages on the page", len(metrics), messages)
	}
}

// TestAlertsAreShipped compares the table of alerts with the rules that are shipped.
func TestAlertsAreShipped(t *testing.T) {
	rules := read(t, "../deploy/monitoring/rules.yml")
	shipped := regexp.MustCompile(`- alert: (\w+)\n +expr: '(.+)'\n(?: +for: (\w+)\n)?(?:.*\n)+? +description: '(.+)'`).FindAllStringSubmatch(rules, -1)
	page := read(t, "operations.md")
	_, table, _ := strings.Cut(page, "| alert | when | meaning, and what to do |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if n := strings.Count(table, "\n| `"); len(shipped) != n || n != strings.Count(rules, "- alert:") || n < 10 {
		t.Fatalf("%d of %d rules were read, and the page has %d", len(shipped), strings.Count(rules, "- alert:"), n)
	}
	for _, s := range shipped {
		when := "`" + s[2] + "`"
		if s[3] != "" {
			when += " for " + s[3]
		}
		if row := "| `" + s[1] + "` | " + when + " | " + s[4] + " |"; !strings.Contains(table, row) {
			t.Errorf("the page lacks the row of a shipped rule:\n%s", row)
		}
	}
}
