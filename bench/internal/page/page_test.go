package page

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPut(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	const was = "# Page\n\n<!-- bench a -->\nold\n<!-- end a -->\n\n<!-- bench b -->\n<!-- end b -->\nmore\n"
	if err := os.WriteFile(file, []byte(was), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Put(file, "c", "x"); err == nil {
		t.Error("a place that is not there was found")
	}
	for range 2 { // a second time is the same
		if err := Put(file, "a", "\n| new |\n"); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if want := "# Page\n\n<!-- bench a -->\n\n| new |\n\n<!-- end a -->\n\n<!-- bench b -->\n<!-- end b -->\nmore\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
}
