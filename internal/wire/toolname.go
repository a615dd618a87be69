package wire

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
)

// MaxToolName is the longest registered name, in bytes: what agents' APIs accept.
const MaxToolName = 64

// MinToolName is the least limit to which names may be shortened: there must be room for a distinction.
const MinToolName = 24

// ToolKey identifies a tool by its extension's id and its local name. Its String, id/tool, always resolves.
type ToolKey struct {
	ID   string `json:"id"`
	Tool string `json:"tool"`
}

// String is id/tool.
func (k ToolKey) String() string { return k.ID + "/" + k.Tool }

// NamedTool is a tool with its registered name.
type NamedTool struct {
	ToolKey
	Name string `json:"name"`
}

// ToolName is the base of a registered name, ext_<id>_<tool>, in which the dot of a member's id and every character of the
// tool outside [A-Za-z0-9_-] are "_". It may be longer than MaxToolName; see Names for the registered name.
func ToolName(id, tool string) string {
	name, _ := baseName(ToolKey{id, tool})
	return name
}

// baseName also reports whether a character was replaced, except the dot of a member's id.
func baseName(k ToolKey) (name string, mapped bool) {
	var b strings.Builder
	b.Grow(5 + len(k.ID) + len(k.Tool))
	b.WriteString("ext_")
	for _, r := range k.ID {
		b.WriteRune(legal(r))
		mapped = mapped || r != '.' && legal(r) != r
	}
	b.WriteByte('_')
	for _, r := range k.Tool {
		b.WriteRune(legal(r))
		mapped = mapped || legal(r) != r
	}
	return b.String(), mapped
}

func legal(r rune) rune {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-':
		return r
	}
	return '_'
}

// SuffixedName is the suffixed form of a name: the base, cut to make the name at most MaxToolName bytes long, "_", and this
// number of hex digits of sha256(id 0x00 tool).
func SuffixedName(id, tool string, digits int) string {
	sum := hashOf(ToolKey{id, tool})
	digits = min(max(digits, 1), MaxToolName-2)
	head := ToolName(id, tool)
	head = head[:min(len(head), MaxToolName-1-digits)]
	return head + "_" + hex.EncodeToString(sum[:])[:digits]
}

func hashOf(k ToolKey) [sha256.Size]byte { return sha256.Sum256([]byte(k.ID + "\x00" + k.Tool)) }

// PrefixDescription prefixes a description with "[ext:<id>] ", unless it has that prefix.
func PrefixDescription(id, description string) string {
	p := "[ext:" + id + "] "
	if strings.HasPrefix(description, p) {
		return description
	}
	return p + description
}

// AssignNames returns the registered name of every tool in keys, if there are no other tools.
func AssignNames(keys []ToolKey) map[ToolKey]string {
	byID := map[string][]string{}
	for _, k := range keys {
		byID[k.ID] = append(byID[k.ID], k.Tool)
	}
	var n Names
	for id, tools := range byID {
		n.Set(id, tools)
	}
	out := make(map[ToolKey]string, len(keys))
	for _, k := range keys {
		out[k] = n.Name(k)
	}
	return out
}

// Names assigns registered names and resolves them. A name depends only on the set of tools (docs/protocol.md, "Tool names"),
// not on the order in which they were added.
//
// A tool gets its base if that is legal, at most MaxToolName long, and not equal to the base or the suffixed form of another
// tool, ignoring case. Otherwise it gets its suffixed form, with 6 digits if no other tool has the same one. A tool has its form
// of 6 digits even if its name is the base: that form always resolves, and no other tool can take it over by its own name.
//
// The zero Names is empty and ready for use. It is not safe for concurrent use.
type Names struct {
	tools map[string]map[string]bool // local names by id
	count int                        // of the tools
	bases map[string][]ToolKey       // by base, in lower case
	forms map[string][]ToolKey       // by suffixed form of 6 digits, in lower case
}

// The lengths of the suffixes. With the long one the name is nearly all hash; it begins differently from all bases and short forms.
const (
	shortSuffix = 6
	longSuffix  = MaxToolName - 2
)

func fold(name string) string { return strings.ToLower(name) }

// strings are the base and the short form of a tool, in lower case.
func (k ToolKey) strings() (base, form string) {
	return fold(ToolName(k.ID, k.Tool)), fold(SuffixedName(k.ID, k.Tool, shortSuffix))
}

// Set sets the local names of the tools of an extension. It returns the ids, sorted, of all extensions of which a tool may
// have got another name, including id if its tools changed.
func (n *Names) Set(id string, tools []string) []string {
	if n.tools == nil {
		n.tools, n.bases, n.forms = map[string]map[string]bool{}, map[string][]ToolKey{}, map[string][]ToolKey{}
	}
	want := make(map[string]bool, len(tools))
	for _, t := range tools {
		want[t] = true
	}
	have := n.tools[id]
	var added []ToolKey
	removed := map[ToolKey]bool{}
	for own := range have {
		if !want[own] {
			removed[ToolKey{id, own}] = true
		}
	}
	for own := range want {
		if !have[own] {
			added = append(added, ToolKey{id, own})
		}
	}
	touched := map[string]bool{}
	names := map[string]bool{} // the bases and forms of what changed
	for k := range removed {
		base, form := k.strings()
		names[base], names[form] = true, true
	}
	n.touch(names, touched)
	for name := range names { // thousands of tools can have the same: each name is searched once
		without(n.bases, name, removed)
		without(n.forms, name, removed)
	}
	clear(names)
	for _, k := range added {
		base, form := k.strings()
		n.bases[base], n.forms[form] = append(n.bases[base], k), append(n.forms[form], k)
		names[base], names[form] = true, true
	}
	n.touch(names, touched)
	n.count += len(added) - len(removed)
	if len(want) == 0 {
		delete(n.tools, id)
	} else {
		n.tools[id] = want
	}
	if len(added)+len(removed) > 0 {
		touched[id] = true
	}
	return slices.Sorted(maps.Keys(touched))
}

func without(m map[string][]ToolKey, at string, tools map[ToolKey]bool) {
	if m[at] = slices.DeleteFunc(m[at], func(k ToolKey) bool { return tools[k] }); len(m[at]) == 0 {
		delete(m, at)
	}
}

// touch adds the extensions of all tools that have one of the names as their base or short form.
func (n *Names) touch(names, touched map[string]bool) {
	for name := range names {
		for _, k := range n.bases[name] {
			touched[k.ID] = true
		}
		for _, k := range n.forms[name] {
			touched[k.ID] = true
		}
	}
}

// Name returns the registered name of a tool, "" for an unknown one.
func (n *Names) Name(k ToolKey) string {
	if !n.tools[k.ID][k.Tool] {
		return ""
	}
	base, replaced := baseName(k)
	if !replaced && len(base) <= MaxToolName && !n.contested(base) {
		return base
	}
	if short := SuffixedName(k.ID, k.Tool, shortSuffix); len(n.forms[fold(short)]) == 1 {
		return short
	}
	return SuffixedName(k.ID, k.Tool, longSuffix)
}

// Clash reports whether a tool cannot have its base as its name because another tool has it, too.
func (n *Names) Clash(k ToolKey) bool {
	return n.tools[k.ID][k.Tool] && n.contested(ToolName(k.ID, k.Tool))
}

// Len is the number of tools.
func (n *Names) Len() int { return n.count }

func (n *Names) contested(base string) bool {
	return len(n.bases[fold(base)]) > 1 || len(n.forms[fold(base)]) > 0
}

// Lookup finds a tool by its registered name, its base, its form of 6 digits, or id/tool. Without a result there is no such
// tool (see Nearest); several results, sorted by id and tool, mean that the name is ambiguous.
func (n *Names) Lookup(name string) []NamedTool {
	if id, own, ok := strings.Cut(name, "/"); ok && n.tools[id][own] {
		return []NamedTool{n.named(ToolKey{id, own})}
	}
	found := slices.Clone(n.forms[fold(name)])
	if len(found) == 0 {
		found = slices.Clone(n.bases[fold(name)])
	}
	if len(found) == 0 && len(name) == MaxToolName && strings.HasPrefix(name, "e_") { // the long form of tools with the same short one
		for _, keys := range n.forms {
			if len(keys) > 1 {
				found = append(found, slices.DeleteFunc(slices.Clone(keys), func(k ToolKey) bool { return !k.has(name) })...)
			}
		}
	}
	slices.SortFunc(found, func(a, b ToolKey) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Tool, b.Tool)) })
	var out []NamedTool
	for _, k := range found {
		if len(found) > 1 || k.has(name) {
			out = append(out, n.named(k))
		}
	}
	return out
}

// has reports whether name is the base or a suffixed form of a tool, including its case.
func (k ToolKey) has(name string) bool {
	return name == ToolName(k.ID, k.Tool) || name == SuffixedName(k.ID, k.Tool, shortSuffix) || name == SuffixedName(k.ID, k.Tool, longSuffix)
}

func (n *Names) named(k ToolKey) NamedTool { return NamedTool{k, n.Name(k)} }
