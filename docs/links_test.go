package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.+)$`)
	unanchor = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// TestLinks checks that every link to this repository, on every page, leads to a file and, if it has a fragment, to a heading.
func TestLinks(t *testing.T) {
	t.Parallel()
	root := ".."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".."):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".md"):
			return nil
		}
		page, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(prose(string(page)), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s: %v", path, m[1], err)
				continue
			}
			if anchor != "" && !anchors(t, target)[anchor] {
				t.Errorf("%s: %s: no such heading", path, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// prose returns a page without its code blocks.
func prose(page string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
			code = !code
		} else if !code {
			b.WriteString(line)
		}
	}
	return b.String()
}

// anchors returns the anchors that GitHub creates for a page's headings.
func anchors(t *testing.T, path string) map[string]bool {
	page, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(prose(string(page)), -1) {
		text := unanchor.ReplaceAllString(strings.ToLower(m[1]), "")
		out[strings.ReplaceAll(text, " ", "-")] = true
	}
	return out
}
