package manifest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/document"
)

// pieceKind is the kind of a part of a value.
type pieceKind int

const (
	literal  pieceKind = iota
	constant           // ${EXTENSION_ROOT} and the other predefined names
	envVar             // ${VAR}, ${VAR:-default}
	fileText           // ${file:PATH}
)

// piece is a part of a value: literal text or a placeholder.
type piece struct {
	kind       pieceKind
	text       string // the literal's text, the placeholder's name or the file's path
	fallback   string // of ${VAR:-default}
	hasDefault bool
}

// The predefined names.
const (
	extensionRoot    = "EXTENSION_ROOT"
	extensionID      = "EXTENSION_ID"
	extensionVersion = "EXTENSION_VERSION"
	agentVersion     = "AGENT_VERSION"
)

var constants = []string{extensionRoot, extensionID, extensionVersion, agentVersion}

// placeholderSyntax matches the text between ${ and }. Names are those of a POSIX shell, so that anything else is
// reported as a mistake.
var (
	placeholderSyntax = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)(:-((?s:.*)))?$`)
	nameSyntax        = regexp.MustCompile(`^[A-Za-z0-9_]*`)
)

// split splits a value, from left to right: "$${" is a literal "${", and "${" begins a placeholder; any other "$" is
// literal. Placeholders do not nest. Errors contain the placeholder but never a default, which may be a secret.
func split(s string) ([]piece, error) {
	var out []piece
	var lit strings.Builder
	flush := func() {
		if lit.Len() > 0 {
			out = append(out, piece{kind: literal, text: lit.String()})
			lit.Reset()
		}
	}
	for s != "" {
		i := strings.IndexByte(s, '$')
		if i < 0 {
			i = len(s)
		}
		lit.WriteString(s[:i])
		switch s = s[i:]; {
		case s == "":
		case strings.HasPrefix(s, "$${"):
			lit.WriteString("${")
			s = s[len("$${"):]
		case strings.HasPrefix(s, "${"):
			flush()
			inner, rest, closed := strings.Cut(s[len("${"):], "}")
			if !closed {
				return nil, fmt.Errorf(`"${" is never closed; write ${NAME}, or $${ for a literal "${"`)
			}
			p, err := placeholder(inner)
			if err != nil {
				return nil, err
			}
			out, s = append(out, p), rest
		default:
			lit.WriteByte('$')
			s = s[1:]
		}
	}
	flush()
	return out, nil
}

// placeholder parses the text between ${ and }.
func placeholder(inner string) (piece, error) {
	if strings.Contains(inner, "${") {
		return piece{}, fmt.Errorf("placeholders do not nest; use one at a time")
	}
	if path, ok := strings.CutPrefix(inner, "file:"); ok {
		if blank(path) || strings.ContainsRune(path, 0) {
			return piece{}, fmt.Errorf("${file:} has no path; write ${file:PATH}")
		}
		return piece{kind: fileText, text: path}, nil
	}
	name, ofClient := strings.CutPrefix(inner, "env:")
	m := placeholderSyntax.FindStringSubmatch(name)
	if m == nil {
		return piece{}, fmt.Errorf(`"${%s" is not a placeholder; want ${NAME}, ${NAME:-default} or ${file:PATH}, or $${ for a literal "${"`,
			document.Clip(nameSyntax.FindString(inner), 64))
	}
	p := piece{kind: envVar, text: m[1], fallback: m[3], hasDefault: m[2] != ""}
	if !ofClient && slices.Contains(constants, p.text) {
		p.kind = constant
	}
	return p, nil
}

// Variables returns the environment variables that m's transport refers to as ${VAR} without a default, sorted. An
// unset one is an unmet requirement of m, like one in requires.env. A member's variables include its parent's,
// because a gated parent gates its members. A parent's do not include its members', because one server without its
// token need not stop the others: check each of Members too.
func (m *Manifest) Variables() []string {
	set := map[string]bool{}
	for n := m; n != nil; n = n.parent {
		for _, v := range n.templates() {
			pieces, _ := split(v.value) // Parse has reported what is wrong with them
			for _, p := range pieces {
				if p.kind == envVar && !p.hasDefault {
					set[p.text] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// Needs lists what an extension uses of its host.
type Needs struct {
	Env   []string // variables in requires.env and in placeholders, with or without a default; sorted
	Files []string // paths in ${file:PATH}, as written; sorted
}

// Needs returns what m uses of its host. A member's needs include its parent's, like its Variables.
func (m *Manifest) Needs() Needs {
	env, files := map[string]bool{}, map[string]bool{}
	for n := m; n != nil; n = n.parent {
		for _, name := range n.Requires.Env {
			env[name] = true
		}
		for _, v := range n.templates() {
			pieces, _ := split(v.value) // Parse has reported what is wrong with them
			for _, p := range pieces {
				switch p.kind {
				case envVar:
					env[p.text] = true
				case fileText:
					files[p.text] = true
				}
			}
		}
	}
	return Needs{Env: slices.Sorted(maps.Keys(env)), Files: slices.Sorted(maps.Keys(files))}
}

// template is one value of a transport in which placeholders are replaced.
type template struct {
	key, value string
	set        func(string)
}

// templates returns the values of m's transport in which placeholders are replaced: env, headers and url, and for a
// member all of them. Their order is fixed, so that the order of errors is.
func (m *Manifest) templates() []template {
	var out []template
	add := func(key string, s *string) { out = append(out, template{key, *s, func(v string) { *s = v }}) }
	addMap := func(key string, m map[string]string) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			out = append(out, template{document.Join(key, name), m[name], func(v string) { m[name] = v }})
		}
	}
	t := &m.Transport
	if m.Parent != "" {
		add("command", &t.Command)
		for i := range t.Args {
			add(document.Element("args", i), &t.Args[i])
		}
		add("cwd", &t.Cwd)
	}
	addMap("env", t.Env)
	add("url", &t.URL)
	addMap("headers", t.Headers)
	return out
}
