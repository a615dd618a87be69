package toolargs

import (
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
)

// Argument describes one argument of a tool, or a member of one that is an object: address.city.
type Argument struct {
	Name, Type  string
	Required    bool
	Default     string // as JSON
	Description string
}

// The limits of what is shown of a schema, which is untrusted.
const (
	maxDescribed = 200
	maxDepth     = 4
	maxTypeText  = 60
	maxRead      = 64 << 20 // bytes, with what is read again for each reference
)

// schemaView is what is shown of a schema. Whatever it lacks, or is malformed in it, is left out.
type schemaView struct {
	Ref         string            `json:"$ref"`
	Type        json.RawMessage   `json:"type"`
	Const       json.RawMessage   `json:"const"`
	Enum        []json.RawMessage `json:"enum"`
	Default     json.RawMessage   `json:"default"`
	Description string            `json:"description"`
	Items       json.RawMessage   `json:"items"`
	AnyOf       []json.RawMessage `json:"anyOf"`
	OneOf       []json.RawMessage `json:"oneOf"`
	AllOf       []json.RawMessage `json:"allOf"`
	Format      string            `json:"format"`
	Minimum     json.Number       `json:"minimum"`
	Maximum     json.Number       `json:"maximum"`
}

// Describe lists the arguments that a schema declares, in the schema's order, with a text for the type of each.
func Describe(schema json.RawMessage) []Argument {
	v := newViewer(schema)
	v.object("", schema, 0)
	return v.rows
}

// viewer reads one schema, and collects the rows that describe it.
type viewer struct {
	root json.RawMessage
	rows []Argument
	read int // bytes
	refs map[string]json.RawMessage
}

func newViewer(schema json.RawMessage) *viewer {
	return &viewer{root: schema, refs: map[string]json.RawMessage{}}
}

// mayRead counts what is read of the schema, and reports whether that is not too much.
func (v *viewer) mayRead(bytes int) bool {
	v.read += bytes
	return v.read <= maxRead
}

// object adds the rows of an object's members.
func (v *viewer) object(prefix string, schema json.RawMessage, depth int) {
	schema = v.resolved(schema, 0)
	if !v.mayRead(len(schema)) {
		return
	}
	for _, p := range properties(schema) {
		if len(v.rows) >= maxDescribed {
			return
		}
		s := v.view(p.schema)
		v.rows = append(v.rows, Argument{
			Name: prefix + p.Name, Type: terminal.Short(v.typeText(p.schema, 0), maxTypeText), Required: p.Required,
			Default: terminal.Short(string(s.Default), maxTypeText), Description: terminal.FirstLine(s.Description),
		})
		if depth+1 < maxDepth {
			v.object(prefix+p.Name+".", p.schema, depth+1)
		}
	}
}

// view decodes a schema. A member of another type than the keyword has is left out with those after it.
func (v *viewer) view(schema json.RawMessage) (s schemaView) {
	target := v.resolved(schema, 0)
	if !v.mayRead(len(target) + len(schema)) {
		return s
	}
	_ = json.Unmarshal(target, &s)
	if s.Description == "" && len(schema) > 0 {
		var own schemaView
		_ = json.Unmarshal(schema, &own) // next to a $ref
		s.Description = own.Description
	}
	return s
}

// resolved follows references within the schema.
func (v *viewer) resolved(schema json.RawMessage, depth int) json.RawMessage {
	var s struct {
		Ref string `json:"$ref"`
	}
	if depth >= maxDepth || !v.mayRead(len(schema)) || json.Unmarshal(schema, &s) != nil || !strings.HasPrefix(s.Ref, "#/") {
		return schema
	}
	if target, ok := v.refs[s.Ref]; ok {
		return v.resolved(target, depth+1)
	}
	path, err := url.PathUnescape(strings.TrimPrefix(s.Ref, "#/"))
	if err != nil {
		return schema
	}
	at := v.root
	for token := range strings.SplitSeq(path, "/") {
		if !v.mayRead(len(at)) {
			return schema
		}
		var ok bool
		if at, ok = step(at, strings.NewReplacer("~1", "/", "~0", "~").Replace(token)); !ok {
			return schema
		}
	}
	v.refs[s.Ref] = at
	return v.resolved(at, depth+1)
}

// step follows one token of a pointer: a member of an object, or an element of an array.
func step(at json.RawMessage, token string) (json.RawMessage, bool) {
	var elements []json.RawMessage
	if n, err := strconv.Atoi(token); err == nil && json.Unmarshal(at, &elements) == nil {
		if n < 0 || n >= len(elements) {
			return nil, false
		}
		return elements[n], true
	}
	members, err := wire.Members(at)
	i := slices.IndexFunc(members, func(m wire.Member) bool { return m.Key == token })
	if err != nil || i < 0 {
		return nil, false
	}
	return members[i].Value, true
}

// values is the schema with the keywords about values: behind references, and behind an allOf of one schema.
func (v *viewer) values(schema json.RawMessage, depth int) json.RawMessage {
	schema = v.resolved(schema, 0)
	if s := v.view(schema); depth < maxDepth && len(s.Enum) == 0 && len(s.AllOf) == 1 {
		return v.values(s.AllOf[0], depth+1)
	}
	return schema
}

// types are the JSON types that a value may have; none if it may have any.
func (v *viewer) types(schema json.RawMessage, depth int) []string {
	if depth >= maxDepth {
		return nil
	}
	s := v.view(schema)
	if types := typesIn(s.Type); len(types) > 0 {
		return types
	}
	if len(s.AllOf) == 1 {
		return v.types(s.AllOf[0], depth+1)
	}
	var types []string
	for _, branch := range slices.Concat(s.AnyOf, s.OneOf) {
		of := v.types(branch, depth+1)
		if len(of) == 0 {
			return nil
		}
		types = append(types, of...)
	}
	return types
}

// typeText is the type of a value in words: string, "metric" or "imperial", array of integer, integer from 1 to 9.
func (v *viewer) typeText(schema json.RawMessage, depth int) string {
	if depth >= maxDepth {
		return "any"
	}
	s := v.view(schema)
	switch {
	case len(s.Const) > 0:
		return string(s.Const)
	case len(s.Enum) > 0:
		return alternatives(s.Enum, func(one json.RawMessage) string { return string(one) })
	}
	for _, branches := range [][]json.RawMessage{s.AnyOf, s.OneOf} {
		if len(branches) > 0 {
			return alternatives(branches, func(one json.RawMessage) string { return v.typeText(one, depth+1) })
		}
	}
	if len(s.AllOf) == 1 {
		return v.typeText(s.AllOf[0], depth+1)
	}
	names := typesIn(s.Type)
	for i, name := range names {
		if name == "array" && len(s.Items) > 0 {
			names[i] = "array of " + v.typeText(s.Items, depth+1)
		}
	}
	text := words.Or(names)
	switch {
	case text == "":
		return "any"
	case s.Format != "":
		text += " (" + s.Format + ")"
	case s.Minimum != "" && s.Maximum != "":
		text += " from " + s.Minimum.String() + " to " + s.Maximum.String()
	case s.Minimum != "":
		text += " from " + s.Minimum.String()
	case s.Maximum != "":
		text += " up to " + s.Maximum.String()
	}
	return text
}

// alternatives lists the different texts of some schemas or values; of many, the first ones.
func alternatives(all []json.RawMessage, text func(json.RawMessage) string) string {
	const most = 12
	var out []string
	for _, one := range all[:min(len(all), most)] {
		if t := text(one); !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	if len(all) > most {
		return strings.Join(out, ", ") + ", …"
	}
	return words.Or(out)
}

// typesIn reads the keyword type, a name or a list of names.
func typesIn(raw json.RawMessage) []string {
	var one string
	if json.Unmarshal(raw, &one) == nil && one != "" {
		return []string{one}
	}
	var many []string
	if json.Unmarshal(raw, &many) != nil {
		return nil
	}
	return many
}
