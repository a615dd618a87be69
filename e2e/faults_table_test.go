package e2e

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the fault table of docs/operations.md")

// The table is between these two lines of the page.
const (
	tableBegins = "<!-- The table of faults: made from e2e/faults*_test.go by go test ./e2e -run TestFaultTable -update -->\n"
	tableEnds   = "<!-- The end of the table of faults -->\n"
)

// TestFaultTable compares the table of docs/operations.md with the faults: one row for each, with no empty cell.
func TestFaultTable(t *testing.T) {
	const path = "../docs/operations.md"
	table := faultTable(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(data), tableBegins)
	have, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		t.Fatalf("%s lacks the lines that enclose the table:\n%s%s", path, tableBegins, tableEnds)
	}
	if have == table {
		return
	}
	if !*update {
		t.Fatalf("the fault table in %s differs from the tests; run go test ./e2e -run TestFaultTable -update", path)
	}
	if err := os.WriteFile(path, []byte(before+tableBegins+table+tableEnds+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func faultTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("\n| | the extension | the caller sees | the operator sees | the bridge |\n|---|---|---|---|---|\n")
	seen := map[string]bool{}
	for _, f := range faults() {
		row := []string{f.does, f.caller, f.operator, f.bridge}
		for i, cell := range row {
			if cell == "" {
				t.Errorf("%s: cell %d is empty", f.mode, i)
			}
			if cell == "the same" { // each row must be understood without the others
				t.Errorf("%s: cell %d is only %q", f.mode, i, cell)
			}
			row[i] = strings.ReplaceAll(cell, "|", "\\|")
		}
		if seen[f.mode] || !regexp.MustCompile(`^[a-z][a-z0-9-]{0,50}$`).MatchString(f.mode) {
			t.Errorf("%q is not a valid name for a fault, or it is used twice", f.mode)
		}
		seen[f.mode] = true
		fmt.Fprintf(&b, "| `%s` | %s |\n", f.mode, strings.Join(row, " | "))
	}
	if n := len(seen); n < 40 {
		t.Errorf("there are only %d faults", n)
	}
	fmt.Fprintf(&b, "\n%d rows.\n\n", len(seen))
	return b.String()
}
