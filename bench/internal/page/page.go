// Package page writes what a benchmark measured into the page that shows it, and leaves the rest of the page to
// people.
package page

import (
	"fmt"
	"os"
	"strings"
)

// Put replaces what stands in a file between the lines <!-- bench NAME --> and <!-- end NAME --> by text. A file
// without them is an error, and is not touched.
func Put(file, name, text string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end := "<!-- bench "+name+" -->\n", "<!-- end "+name+" -->\n"
	before, rest, ok := strings.Cut(string(data), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no place for %s: the lines %s and %s, in that order", file, name, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(file, []byte(before+begin+"\n"+strings.TrimSpace(text)+"\n\n"+end+after), 0o644)
}
