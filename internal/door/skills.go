package door

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// skill is a skill of the mesh as clients get it: a resource, and an entry of skills/list (the extension of the protocol
// io.modelcontextprotocol/skills, SEP-2640).
type skill struct {
	of       mesh.Skill
	uri      string
	text     string // of its SKILL.md
	listed   []byte // in skills/list
	resource []byte // in resources/list
}

// The limits of the format of skills (agentskills.io).
const (
	maxSkillName        = 64
	maxSkillDescription = 1000
)

// setSkills renders the skills that have changed. It is for the goroutine of Run.
func (l *lists) setSkills(skills []mesh.Skill) {
	old := make(map[string]*skill, len(l.skills))
	for _, s := range l.skills {
		old[s.of.Dir] = s
	}
	l.skills = make([]*skill, 0, len(skills))
	for _, of := range skills {
		s := old[of.Dir]
		if s == nil || s.of.Name != of.Name || s.of.Description != of.Description || s.of.Body != of.Body {
			s = newSkill(of)
		}
		l.skills = append(l.skills, s)
	}
}

// newSkill renders a skill. The catalog has the text below the front matter, so the front matter is written here, and is
// the same in skills/list. A name in it may have only letters, digits and hyphens, and is the last directory of the URI.
func newSkill(of mesh.Skill) *skill {
	name := skillName(of.Dir)
	s := &skill{of: of, uri: "skill://" + of.Dir + "/SKILL.md"}
	if name != of.Dir {
		s.uri = "skill://" + of.Dir + "/" + name + "/SKILL.md"
	}
	about := strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\ufeff' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(of.Description, "\uFFFD")))
	if about == "" {
		about = "The skill " + of.Dir + "."
	}
	description := string(mcp.Quote(clip(about, maxSkillDescription)))
	front := `"name":"` + name + `","description":` + description
	s.text = "---\nname: \"" + name + "\"\ndescription: " + description + "\n---\n\n" + strings.ToValidUTF8(of.Body, "\uFFFD") // a JSON string is a YAML string
	sum, size := sha256.Sum256([]byte(s.text)), strconv.Itoa(len(s.text))
	s.listed = []byte(`{"uri":"` + s.uri + `","frontmatter":{` + front + `},"resources":[{"uri":"` + s.uri + `","digest":"sha256:` + hex.EncodeToString(sum[:]) + `","size":` + size + `}]}`)
	s.resource = []byte(`{"uri":"` + s.uri + `",` + front + `,"mimeType":"text/markdown","size":` + size + `}`)
	return s
}

// skillName is the name of a skill with this directory: hyphens instead of underscores, none of them twice or at an end.
func skillName(dir string) string {
	words := strings.FieldsFunc(dir, func(r rune) bool { return r == '_' || r == '-' })
	name := strings.Join(words, "-")
	return strings.TrimSuffix(name[:min(len(name), maxSkillName)], "-")
}

// permitsSkill reports whether the view has a skill: a pattern has skill:<directory>.
func (o ViewOptions) permitsSkill(dir string) bool {
	matches := func(pattern string) bool {
		ok, _ := path.Match(pattern, "skill:"+dir) // check has tried the pattern
		return ok
	}
	return (len(o.Only) == 0 || slices.ContainsFunc(o.Only, matches)) && !slices.ContainsFunc(o.Exclude, matches)
}

// addSkills adds the skills that the view shows to its resources.
func (v *view) addSkills(entries []*entry, skills []*skill, o ViewOptions) []*entry {
	v.skills = listing{byKey: map[string]*entry{}}
	for _, s := range skills {
		if o.permitsSkill(s.of.Dir) {
			e := &entry{named: named{key: wire.ToolKey{Tool: s.uri}}, text: s.resource, skill: s}
			entries = append(entries, e)
			v.skills.byKey[s.uri] = e
		}
	}
	v.skills.fill(func(_ string, e *entry) []byte { return e.skill.listed })
	return entries
}

// getSkill answers skills/get.
func (c asks) getSkill(q *request) ([]byte, *rpc.Error) {
	uri, err := q.params.Text("uri", q.params.URI)
	if err != nil {
		return nil, err
	}
	e := c.view.now.Load().skills.byKey[uri]
	if e == nil {
		return nil, mcp.NewError(rpc.CodeInvalidParams, "There is no skill "+clip(uri, 256)+" here.", map[string]any{"uri": uri})
	}
	return append(append(append(append([]byte{'{'}, c.cacheable()...), `"skill":`...), e.skill.listed...), '}'), nil
}

// readSkill answers resources/read for a skill; ok is false if the request is for another resource.
func (c asks) readSkill(q *request) (result []byte, ok bool) {
	uri, err := q.params.Text("uri", q.params.URI)
	e := c.view.now.Load().skills.byKey[uri]
	if err != nil || e == nil {
		return nil, false
	}
	out := []byte(`{"contents":[{"uri":"` + uri + `","mimeType":"text/markdown","text":`)
	out = append(append(out, mcp.Quote(e.skill.text)...), "}]}"...)
	return q.era.Complete(q.era.Uncacheable(out)), true
}
