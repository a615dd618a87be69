package manifest

import (
	"strings"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/document"
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

// maxSkillBody is the longest body that registries accept, in bytes.
const maxSkillBody = 256 << 10

// ParseSkill parses a SKILL.md; path is only for the diagnostics. The front matter is YAML between two lines of
// "---", the first of which is the first line of the file; its keys are name, description, max_chars and requires
// with bins and env. All its faults are reported together, with line, column and key; a syntax error is reported
// alone. The skill is nil if any diagnostic is an Error.
//
// A file without front matter is a skill without a name, with a warning. An unknown key is a warning because other
// hosts have their own keys. A body over max_chars is cut, with a warning: max_chars is the author's limit for the
// agent's context, and a shortened skill is more useful than none.
func ParseSkill(path string, data []byte) (*Skill, []Diagnostic) {
	d, ok := document.Open(path, data, document.Options{Subject: "the front matter", AtValues: true})
	if !ok {
		return nil, d.Findings()
	}
	front, body, ok := frontMatter(d)
	if !ok {
		return nil, d.Findings()
	}
	top, ok := d.YAML(front)
	if !ok {
		return nil, d.Findings()
	}
	s := (&table{Table: top}).skill(front != "")
	s.Body = body
	if n := utf8.RuneCountInString(body); s.MaxChars > 0 && n > s.MaxChars {
		d.Warn("max_chars", "the body has %d characters and is cut to %d; shorten it or raise max_chars", n, s.MaxChars)
		s.Body = string([]rune(body)[:s.MaxChars])
	}
	if len(s.Body) > maxSkillBody {
		d.FaultAt(0, "the body has %d bytes; want at most %d", len(s.Body), maxSkillBody)
	}
	if blank(body) {
		d.Warn("", "there is nothing below the front matter")
	}
	if d.Faults > 0 {
		return nil, d.Findings()
	}
	return s, d.Findings()
}

// frontMatter splits the text in two. The first part begins with an empty line in place of the opening "---", so that
// line numbers match the file.
func frontMatter(d *document.Doc) (front, body string, ok bool) {
	first, rest, _ := strings.Cut(d.Text(), "\n")
	if strings.TrimRight(first, " \t\r") != "---" {
		return "", d.Text(), true
	}
	for at := 0; at < len(rest); {
		line, _, more := strings.Cut(rest[at:], "\n")
		if strings.TrimRight(line, " \t\r") == "---" {
			front, body = "\n"+rest[:at], rest[at+len(line):]
			if at > maxFrontMatter {
				d.FaultAt(0, "the front matter has %d bytes; want at most %d", at, maxFrontMatter)
				return "", "", false
			}
			return front, strings.TrimPrefix(body, "\n"), true
		}
		if at += len(line); more {
			at++
		}
	}
	d.FaultAt(0, `the front matter is never closed; want a line of "---" below it`)
	return "", "", false
}

func (t *table) skill(front bool) *Skill {
	s := &Skill{Name: t.text("name", maxLabel), Description: t.text("description", 2*maxDescription)}
	if _, isText := t.Raw("name").(string); isText && (blank(s.Name) || !printable(s.Name)) {
		t.Fault("name", "is blank or contains a control character; want a label, or no name")
	}
	if !front {
		t.Warn("", `has no front matter; want "---", name, description, "---" at its top`)
	} else if text, isText := t.Raw("description").(string); !t.Has("description") || isText && blank(text) {
		t.Warn("description", "missing; agents choose a skill by its description")
	}
	n, _ := t.Int("max_chars", 1, MaxFile)
	s.MaxChars = int(n)
	s.Requires = t.requires(document.Warn)
	t.Unknown(document.Warn)
	return s
}
