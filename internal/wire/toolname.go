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
// A tool gets its base if that is legal, at most MaxToolName long, and not equal to the base or a suffixed form of another
// tool, ignoring case. Otherwise it gets the shortest suffixed form that no other tool has: all tools with the same form of 6
// digits also have the form of 8, and so on. A tool has its form of 6 digits even if its name is the base: that form always
// resolves, and no other tool can take it over by its own name.
//
// Equal suffixed forms need equal digits, so only tools in one group of hashes are compared: nearly always a tool is alone
// in its group.
//
// The zero Names is empty and ready for use. It is not safe for concurrent use.
type Names struct {
	tools   map[string]map[string]bool // local names by id
	count   int                        // of the tools
	bases   map[string][]ToolKey       // by base, in lower case
	hash    map[group][]ToolKey
	clashes map[group]*clash // of groups with several tools; computed when needed
}

// group is the first 6 digits of the hash of a tool.
type group [3]byte

// clash has the suffixed forms of a group.
type clash struct {
	tools map[string][]ToolKey // by form, in lower case
	level map[ToolKey]int      // index in digits of the longest form of a tool
}

// digits are the lengths of the suffixes. With the last one the name is nearly all hash.
var digits = [...]int{6, 8, 12, MaxToolName - 2}

func fold(name string) string { return strings.ToLower(name) }

func groupOf(k ToolKey) group {
	sum := hashOf(k)
	return group(sum[:3])
}

// newClash compares the tools of a group.
func newClash(tools []ToolKey) *clash {
	c := &clash{tools: map[string][]ToolKey{}, level: map[ToolKey]int{}}
	for level, length := range digits {
		equal := map[string][]ToolKey{}
		for _, k := range tools {
			form := fold(SuffixedName(k.ID, k.Tool, length))
			equal[form] = append(equal[form], k)
			c.level[k] = level
		}
		tools = nil
		for form, these := range equal {
			if c.tools[form] = these; len(these) > 1 {
				tools = append(tools, these...)
			}
		}
	}
	return c
}

func (n *Names) clash(g group) *clash {
	c := n.clashes[g]
	if c == nil {
		c = newClash(n.hash[g])
		n.clashes[g] = c
	}
	return c
}

// Set sets the local names of the tools of an extension. It returns the ids, sorted, of all extensions of which a tool may
// have got another name, including id if its tools changed.
func (n *Names) Set(id string, tools []string) []string {
	if n.tools == nil {
		n.tools, n.bases = map[string]map[string]bool{}, map[string][]ToolKey{}
		n.hash, n.clashes = map[group][]ToolKey{}, map[group]*clash{}
	}
	want := make(map[string]bool, len(tools))
	for _, t := range tools {
		want[t] = true
	}
	have, changed, removed := n.tools[id], map[ToolKey]group{}, map[ToolKey]group{}
	for own := range have {
		if k := (ToolKey{id, own}); !want[own] {
			changed[k] = groupOf(k)
			removed[k] = changed[k]
		}
	}
	for own := range want {
		if k := (ToolKey{id, own}); !have[own] {
			changed[k] = groupOf(k)
		}
	}
	touched := map[string]bool{}
	n.touch(changed, touched)
	n.remove(removed)
	for k, g := range changed {
		if !have[k.Tool] {
			n.add(k, g)
		}
	}
	if n.touch(changed, touched); len(want) == 0 {
		delete(n.tools, id)
	} else {
		n.tools[id] = want
	}
	if len(changed) > 0 {
		touched[id] = true
	}
	return slices.Sorted(maps.Keys(touched))
}

func (n *Names) add(k ToolKey, g group) {
	base := fold(ToolName(k.ID, k.Tool))
	n.bases[base] = append(n.bases[base], k)
	n.hash[g] = append(n.hash[g], k)
	delete(n.clashes, g)
	n.count++
}

// remove removes tools: thousands can have the same base, so each base and each group is searched only once.
func (n *Names) remove(tools map[ToolKey]group) {
	bases, groups := map[string]bool{}, map[group]bool{}
	for k, g := range tools {
		bases[fold(ToolName(k.ID, k.Tool))], groups[g] = true, true
	}
	for base := range bases {
		without(n.bases, base, tools)
	}
	for g := range groups {
		without(n.hash, g, tools)
		delete(n.clashes, g)
	}
	n.count -= len(tools)
}

func without[K comparable](m map[K][]ToolKey, at K, tools map[ToolKey]group) {
	if m[at] = slices.DeleteFunc(m[at], func(k ToolKey) bool { _, ok := tools[k]; return ok }); len(m[at]) == 0 {
		delete(m, at)
	}
}

// touch adds the extensions with names that may depend on tools: with the same base, in the same group, or with a base that
// is a suffixed form of the group.
func (n *Names) touch(tools map[ToolKey]group, touched map[string]bool) {
	groups, bases := map[group]bool{}, map[string]bool{}
	for k, g := range tools {
		groups[g], bases[fold(ToolName(k.ID, k.Tool))] = true, true
	}
	for g := range groups {
		for _, k := range n.hash[g] {
			touched[k.ID] = true
			bases[fold(SuffixedName(k.ID, k.Tool, digits[0]))] = true
		}
		if len(n.hash[g]) > 1 {
			for form := range n.clash(g).tools {
				bases[form] = true
			}
		}
	}
	for base := range bases { // thousands of tools can have the same
		for _, k := range n.bases[base] {
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
	level := 0
	if g := groupOf(k); len(n.hash[g]) > 1 {
		level = n.clash(g).level[k]
	}
	return SuffixedName(k.ID, k.Tool, digits[level])
}

// Clash reports whether a tool cannot have its base as its name because another tool has it, too.
func (n *Names) Clash(k ToolKey) bool {
	return n.tools[k.ID][k.Tool] && n.contested(ToolName(k.ID, k.Tool))
}

// Len is the number of tools.
func (n *Names) Len() int { return n.count }

func (n *Names) contested(base string) bool {
	return len(n.bases[fold(base)]) > 1 || len(n.suffixed(fold(base))) > 0
}

// suffixed returns the tools that have a name, in lower case, as a suffixed form.
func (n *Names) suffixed(name string) []ToolKey {
	at := strings.LastIndexByte(name, '_') + 1
	if !slices.Contains(digits[:], len(name)-at) {
		return nil
	}
	start, err := hex.DecodeString(name[at : at+digits[0]])
	if err != nil {
		return nil
	}
	tools := n.hash[group(start)]
	switch {
	case len(tools) > 1:
		return n.clash(group(start)).tools[name]
	case len(tools) == 1 && fold(SuffixedName(tools[0].ID, tools[0].Tool, digits[0])) == name:
		return tools
	}
	return nil
}

// Lookup finds a tool by its registered name, its base, its form of 6 digits, or id/tool. Without a result there is no such
// tool (see Nearest); several results, sorted by id and tool, mean that the name is ambiguous.
func (n *Names) Lookup(name string) []NamedTool {
	if id, own, ok := strings.Cut(name, "/"); ok && n.tools[id][own] {
		return []NamedTool{n.named(ToolKey{id, own})}
	}
	found := slices.Clone(n.suffixed(fold(name)))
	if len(found) == 0 {
		found = slices.Clone(n.bases[fold(name)])
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
	suffix := len(name) - strings.LastIndexByte(name, '_') - 1
	return name == ToolName(k.ID, k.Tool) || slices.Contains(digits[:], suffix) && name == SuffixedName(k.ID, k.Tool, suffix)
}

func (n *Names) named(k ToolKey) NamedTool { return NamedTool{k, n.Name(k)} }
