package config

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/extmesh/extmesh/internal/document"
)

// setList returns text with extensions.<key> set to want. Only the lines of the list change. It supports the usual forms:
// a list with one item per line, a list in brackets on one line, and no list. For others the result is wrong, or no YAML, or
// text as it was: the caller compares it with what it wants.
//
// Writing the tree of the YAML library instead would also change blank lines, indentation and the position of comments
// in the rest of the file.
func setList(path, text, key string, want []string) string {
	d, top, ok := open(path, []byte(text))
	if !ok || strings.HasPrefix(strings.TrimSpace(d.Text()), "{") {
		return text // JSON would no longer be JSON, because the names in lists have no quotes
	}
	e := editor{Doc: d, lines: strings.SplitAfter(d.Text(), "\n"), eol: "\n"}
	if strings.Contains(text, "\r\n") {
		e.eol = "\r\n"
	}
	bom := text[:len(text)-len(d.Text())]
	extensions := top.sub("extensions")
	items, _ := extensions.Raw(key).([]any)
	list := document.Join("extensions", key)
	line, after, written := e.after(list)
	switch {
	case !written:
		e.addKey(extensions, key+": "+flow(want))
	case extensions.Raw(key) == nil:
		e.lines[line] = e.lines[line][:after] + " " + flow(want) + e.lines[line][after:]
	case strings.HasPrefix(strings.TrimSpace(e.lines[line][after:]), "["):
		before, rest, _ := strings.Cut(e.lines[line][after:], "[")
		_, rest, _ = strings.Cut(rest, "]")
		e.lines[line] = e.lines[line][:after] + before + flow(want) + rest
	default:
		e.setItems(list, items, want)
		if len(want) == 0 {
			e.lines[line] = e.lines[line][:after] + " []" + e.lines[line][after:]
		}
	}
	return bom + strings.Join(e.lines, "")
}

// editor changes the lines of a file.
type editor struct {
	*document.Doc
	lines []string // with their ends
	eol   string
}

// after returns the line, from 0, that has the key path, and where its colon ends in it.
func (e *editor) after(path string) (line, after int, ok bool) {
	line, column, ok := e.KeyPos(path)
	if !ok {
		return 0, 0, false
	}
	colon := strings.IndexByte(e.lines[line-1][column-1:], ':')
	return line - 1, column + colon, true
}

// addKey adds a line below extensions, after everything that is there.
func (e *editor) addKey(extensions mapping, entry string) {
	line, _, ok := e.after("extensions")
	indent := "  "
	if names := extensions.Names(); len(names) > 0 {
		first, column, _ := e.KeyPos(document.Join("extensions", names[0]))
		indent = e.lines[first-1][:column-1]
		for i := range e.lines {
			if content := strings.TrimSpace(e.lines[i]); content != "" && content[0] != '#' && content != "..." {
				line = i
			}
		}
	} else if !ok {
		if strings.TrimSpace(e.Text()) == "" {
			e.lines = nil
		}
		e.lines = append(e.lines, "extensions:"+e.eol)
		line = len(e.lines) - 1
		if line > 0 && e.lines[line-1] != "" && !strings.HasSuffix(e.lines[line-1], "\n") {
			e.lines[line-1] += e.eol
		}
	}
	e.insert(line+1, indent+entry)
}

// insert inserts a line.
func (e *editor) insert(at int, text string) {
	if !strings.HasSuffix(e.lines[at-1], "\n") {
		e.lines[at-1] += e.eol
	}
	e.lines = slices.Insert(e.lines, at, text+e.eol)
}

// setItems removes and adds lines of a list with one item per line.
func (e *editor) setItems(list string, items []any, want []string) {
	last, indent := 0, ""
	var removed []int
	for i, item := range items {
		line, column, _ := e.ValuePos(document.Element(list, i))
		last, indent = line, e.lines[line-1][:column-1]
		if s, _ := item.(string); !slices.Contains(want, s) {
			removed = append(removed, line-1)
		}
	}
	for _, s := range want {
		if last > 0 && !slices.Contains(items, any(s)) {
			e.insert(last, indent+scalar(s))
			last++
		}
	}
	for i, line := range slices.Backward(removed) {
		if i == 0 || removed[i-1] != line {
			e.lines = slices.Delete(e.lines, line, line+1)
		}
	}
}

// plain matches what every version of YAML reads as a string without quotes.
var plain = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./-]*$`)

// scalar formats a string as YAML.
func scalar(s string) string {
	words := []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
	if plain.MatchString(s) && !slices.Contains(words, strings.ToLower(s)) {
		return s
	}
	return strconv.Quote(s)
}

// flow formats a list as YAML.
func flow(list []string) string {
	var parts []string
	for _, s := range list {
		parts = append(parts, scalar(s))
	}
	return "[" + strings.Join(parts, ", ") + "]"
}
