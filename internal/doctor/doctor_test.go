package doctor

import (
	"slices"
	"testing"
)

func TestProgress(t *testing.T) {
	var lines []string
	tr := &tryout{Doctor: &Doctor{parts: make([]Part, 2)}, Options: Options{Progress: func(line string) { lines = append(lines, line) }}}
	tr.count("one", false)
	tr.count("two", false)
	tr.count("one", true)
	tr.count("two", true)
	want := []string{"0 of 2 tested; testing one", "0 of 2 tested; testing one, two", "1 of 2 tested; testing two", "2 of 2 tested"}
	if !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
	tr.Progress = nil
	tr.count("one", true) // prints nothing
}
