package manifest

import (
	"strings"
	"unicode/utf8"
)

// SkillFileName is the name of a skill's file, below skills_dir/<name>/.
const SkillFileName = "SKILL.md"

// maxFrontMatter is far more than the keys need; the YAML parser's time grows quadratically.
const maxFrontMatter = 8 << 10

// Skill is a parsed SKILL.md: instructions for an agent, with metadata in the front matter.
type Skill struct {
	Name        string   // any label; the skill's key is its directory's name
	Description string   // when to use it
	MaxChars    int      // how much of Body is published, in Unicode characters; 0 = all of it
	Requires    Requires // a skill with a missing requirement is not published
	Body        string   // the text after the front matter, cut to MaxChars
}

// ParseSkill parses a SKILL.md; path is only for the diagnostics. The front matter is YAML between two lines of
// "---", the first of which is the first line of the file; its keys are name, description, max_chars and requires
// with bins and env. All its faults are reported together, with line, column and key; a syntax error is reported
// alone. The skill is nil if any diagnostic is an Error.
//
// A file without front matter is a skill without a name, with a warning. An unknown key is a warning because other
// hosts have their own keys. A body over max_chars is cut, with a warning: max_chars is the author's limit for the
// agent's context, and a shortened skill is more useful than none.
func ParseSkill(path string, data []byte) (*Skill, []Diagnostic) {
	f, ok := open(path, data, Error)
	if !ok {
		return nil, f.done()
	}
	front, body, ok := f.frontMatter()
	if !ok {
		return nil, f.done()
	}
	tree, ok := f.decodeYAML(front)
	if !ok {
		return nil, f.done()
	}
	s := f.root(tree).skill(front != "")
	s.Body = body
	if n := utf8.RuneCountInString(body); s.MaxChars > 0 && n > s.MaxChars {
		f.warn("max_chars", "the body has %d characters and is cut to %d; shorten it or raise max_chars", n, s.MaxChars)
		s.Body = string([]rune(body)[:s.MaxChars])
	}
	if blank(body) {
		f.warn("", "there is nothing below the front matter")
	}
	if f.faults > 0 {
		return nil, f.done()
	}
	return s, f.done()
}

// frontMatter splits the text in two. The first part begins with an empty line in place of the opening "---", so that
// line numbers match the file.
func (f *file) frontMatter() (front, body string, ok bool) {
	first, rest, _ := strings.Cut(f.text, "\n")
	if strings.TrimRight(first, " \t\r") != "---" {
		return "", f.text, true
	}
	for at := 0; at < len(rest); {
		line, _, more := strings.Cut(rest[at:], "\n")
		if strings.TrimRight(line, " \t\r") == "---" {
			front, body = "\n"+rest[:at], rest[at+len(line):]
			if at > maxFrontMatter {
				f.faultAt(0, "the front matter has %d bytes; want at most %d", at, maxFrontMatter)
				return "", "", false
			}
			return front, strings.TrimPrefix(body, "\n"), true
		}
		if at += len(line); more {
			at++
		}
	}
	f.faultAt(0, `the front matter is never closed; want a line of "---" below it`)
	return "", "", false
}

func (t *table) skill(front bool) *Skill {
	s := &Skill{Name: t.text("name", maxLabel), Description: t.text("description", 2*maxDescription)}
	if _, isText := t.m["name"].(string); isText && (blank(s.Name) || !printable(s.Name)) {
		t.fault("name", "is blank or contains a control character; want a label, or no name")
	}
	if !front {
		t.warn("", `has no front matter; want "---", name, description, "---" at its top`)
	} else if text, isText := t.m["description"].(string); !t.has("description") || isText && blank(text) {
		t.warn("description", "missing; agents choose a skill by its description")
	}
	n, _ := t.integer("max_chars", 1, MaxFile)
	s.MaxChars = int(n)
	s.Requires = t.requires(Warn)
	t.unknown(Warn)
	return s
}
