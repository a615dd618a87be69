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

// ToolKey is a tool's identity: its extension's id and its own name. Its String, id/tool, always resolves.
type ToolKey struct {
	ID   string `json:"id"`
	Tool string `json:"tool"`
}

// String is id/tool.
func (k ToolKey) String() string { return k.ID + "/" + k.Tool }

// NamedTool is a tool with the name it is registered under.
type NamedTool struct {
	ToolKey
	Name string `json:"name"`
}

// ToolName is the bare form of a registered name, ext_<id>_<tool>, with the dot of a member's id and every
// character of the tool outside [A-Za-z0-9_-] as "_". It may be longer than MaxToolName; see Names for the name
// that a tool gets.
func ToolName(id, tool string) string {
	name, _ := bareName(ToolKey{id, tool})
	return name
}

// bareName also reports whether a character was mapped, the member's dot aside.
func bareName(k ToolKey) (name string, mapped bool) {
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

// SuffixedName is the long form: as much of the bare form as fits, "_", and the first digits (6, 8, 12, …) hex
// digits of sha256(id 0x00 tool); MaxToolName bytes at most.
func SuffixedName(id, tool string, digits int) string {
	sum := sha256.Sum256([]byte(id + "\x00" + tool))
	digits = min(max(digits, 1), MaxToolName-2)
	head := ToolName(id, tool)
	head = head[:min(len(head), MaxToolName-1-digits)]
	return head + "_" + hex.EncodeToString(sum[:])[:digits]
}

// PrefixDescription puts "[ext:<id>] " in front of a description, once.
func PrefixDescription(id, description string) string {
	p := "[ext:" + id + "] "
	if strings.HasPrefix(description, p) {
		return description
	}
	return p + description
}

// AssignNames is the name of every tool in keys, when those are all the tools there are. The order of keys and
// repetitions make no difference.
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

// Names assigns registered names and resolves them again. The names are a function of the set of tools alone
// (docs/protocol.md, "Registered names"): every replica and every client computes the same, in whatever order it
// heard of them.
//
// A tool claims two names, its bare form and its form with 6 digits. It is registered under the bare form if
// that is legal as it stands, at most MaxToolName long, and claimed by nobody else in either form, case-folded;
// otherwise under the shortest suffixed form that no other tool's suffixed form equals. Where a form with 6
// digits is contested so, all of the clash also claim the one with 8, and so on. A form with 6 digits is claimed
// even while its tool goes by the bare name, and goes before others' bare names: it always resolves, and no tool
// can be named so as to take it over.
//
// The zero Names is empty and ready for use. It has no lock: one goroutine at a time.
type Names struct {
	tools map[string]map[string]*toolClaim // by id, by own name
	count int                              // of the tools
	bare  map[string]claimants             // of a bare form, folded
	long  map[string]claimants             // of a suffixed form, folded
	deep  map[*toolClaim]bool              // those that claim more than 6 digits
}

// toolClaim is a tool with the names it claims: level 0 the bare form, level n that with digits[n-1] hex digits.
type toolClaim struct {
	key   ToolKey
	level int // of the longest form claimed; at least 1
}

// digits are the lengths of the suffixes. With the last the name is nearly all hash.
var digits = [...]int{6, 8, 12, 16, 24, 32, 48, 62}

func (t *toolClaim) at(level int) string {
	if level == 0 {
		return ToolName(t.key.ID, t.key.Tool)
	}
	return SuffixedName(t.key.ID, t.key.Tool, digits[level-1])
}

// claimants of one name: nearly always one, so that a hundred thousand tools do not need as many maps.
type claimants struct {
	one  *toolClaim
	more map[*toolClaim]bool // all of them, one included, from the second on
}

func (c claimants) contested() bool { return len(c.more) > 1 }

func (c claimants) with(t *toolClaim) claimants {
	switch {
	case c.one == nil:
		c.one = t
	case c.more == nil:
		c.more = map[*toolClaim]bool{c.one: true, t: true}
	default:
		c.more[t] = true
	}
	return c
}

func (c claimants) without(t *toolClaim) claimants {
	if c.more == nil {
		return claimants{}
	}
	delete(c.more, t)
	for other := range c.more {
		c.one = other
		break
	}
	if len(c.more) == 1 {
		c.more = nil
	}
	return c
}

func (c claimants) all() []*toolClaim {
	switch {
	case c.one == nil:
		return nil
	case c.more == nil:
		return []*toolClaim{c.one}
	}
	return slices.SortedFunc(maps.Keys(c.more), func(a, b *toolClaim) int {
		return cmp.Or(cmp.Compare(a.key.ID, b.key.ID), cmp.Compare(a.key.Tool, b.key.Tool))
	})
}

// Set says which tools id has now, by their own names. It returns the ids, sorted, of all extensions of which a
// tool may have another name now; id itself is among them if its set of tools changed.
func (n *Names) Set(id string, tools []string) []string {
	if n.tools == nil {
		n.tools, n.deep = map[string]map[string]*toolClaim{}, map[*toolClaim]bool{}
		n.bare, n.long = map[string]claimants{}, map[string]claimants{}
	}
	want := make(map[string]bool, len(tools))
	for _, t := range tools {
		want[t] = true
	}
	touched := map[string]bool{}
	have := n.tools[id]
	for own, t := range have {
		if !want[own] {
			delete(have, own)
			n.count--
			touched[id] = true
			n.remove(t, touched)
		}
	}
	if have == nil && len(want) > 0 {
		have = make(map[string]*toolClaim, len(want))
		n.tools[id] = have
	}
	for own := range want {
		if have[own] == nil {
			have[own] = &toolClaim{key: ToolKey{id, own}}
			n.count++
			touched[id] = true
			n.add(have[own], touched)
		}
	}
	if len(have) == 0 {
		delete(n.tools, id)
	}
	return slices.Sorted(maps.Keys(touched))
}

// Name is the name that a tool is registered under, or "" for one that n does not know.
func (n *Names) Name(k ToolKey) string {
	t := n.tools[k.ID][k.Tool]
	if t == nil {
		return ""
	}
	bare, mapped := bareName(k)
	if !mapped && len(bare) <= MaxToolName && !n.contested(bare) {
		return bare
	}
	return t.at(t.level)
}

// Clash reports whether a tool cannot have its bare name because another tool claims it too.
func (n *Names) Clash(k ToolKey) bool {
	return n.tools[k.ID][k.Tool] != nil && n.contested(ToolName(k.ID, k.Tool))
}

// Len is the number of tools.
func (n *Names) Len() int { return n.count }

func (n *Names) contested(bare string) bool {
	name := fold(bare)
	return n.bare[name].contested() || n.long[name].one != nil
}

func fold(name string) string { return strings.ToLower(name) }

func (n *Names) add(t *toolClaim, touched map[string]bool) {
	name := fold(t.at(0))
	if had := n.bare[name]; had.one != nil && !had.contested() {
		touched[had.one.key.ID] = true
	}
	n.bare[name] = n.bare[name].with(t)
	n.raise(append(n.claim(t, 1, touched), t), touched)
}

// claim makes t claim its suffixed form of a level. It returns whom that takes an uncontested longest form from.
func (n *Names) claim(t *toolClaim, level int, touched map[string]bool) (newly []*toolClaim) {
	name := fold(t.at(level))
	t.level = level
	had := n.long[name]
	if had.one != nil && !had.contested() {
		newly = []*toolClaim{had.one}
	}
	n.long[name] = had.with(t)
	n.touchBare(name, touched)
	return newly
}

// touchBare notes whom a change of the suffixed form name may have given or taken the bare name.
func (n *Names) touchBare(name string, touched map[string]bool) {
	if c := n.bare[name]; c.one != nil && !c.contested() {
		touched[c.one.key.ID] = true
	}
}

// raise makes everyone in work whose longest form is contested claim the next.
func (n *Names) raise(work []*toolClaim, touched map[string]bool) {
	for len(work) > 0 {
		t := work[len(work)-1]
		work = work[:len(work)-1]
		for t.level < len(digits) && n.long[fold(t.at(t.level))].contested() {
			n.deep[t] = true
			touched[t.key.ID] = true
			work = append(work, n.claim(t, t.level+1, touched)...)
		}
	}
}

// unclaim takes t's claim of its suffixed form of a level back.
func (n *Names) unclaim(t *toolClaim, level int, touched map[string]bool) {
	name := fold(t.at(level))
	if c := n.long[name].without(t); c.one != nil {
		n.long[name] = c
	} else {
		delete(n.long, name)
	}
	n.touchBare(name, touched)
}

// remove takes t's claims back. The longer forms exist only because shorter ones clashed, so all of them are
// worked out again: there are hardly ever any, a clash of 6 digits being one in 16 million.
func (n *Names) remove(t *toolClaim, touched map[string]bool) {
	name := fold(t.at(0))
	if n.bare[name] = n.bare[name].without(t); n.bare[name].one == nil {
		delete(n.bare, name)
	}
	n.touchBare(name, touched)
	for level := 1; level <= t.level; level++ {
		n.unclaim(t, level, touched)
	}
	delete(n.deep, t)
	if len(n.deep) == 0 {
		return
	}
	again := slices.Collect(maps.Keys(n.deep))
	clear(n.deep)
	for _, d := range again {
		touched[d.key.ID] = true
		for ; d.level > 1; d.level-- {
			n.unclaim(d, d.level, touched)
		}
	}
	n.raise(again, touched)
}

// Lookup finds a tool by its registered name, its bare name, its name with 6 digits, or id/tool. No candidate
// means that there is no such tool (see Nearest), several (sorted by id, then tool) that the name is ambiguous.
// Names are looked up, never taken apart.
func (n *Names) Lookup(name string) []NamedTool {
	if id, own, ok := strings.Cut(name, "/"); ok {
		if t := n.tools[id][own]; t != nil {
			return []NamedTool{n.named(t)}
		}
	}
	c := n.long[fold(name)]
	if c.one == nil {
		c = n.bare[fold(name)]
	}
	var out []NamedTool
	for _, t := range c.all() {
		if c.contested() || t.claims(name) {
			out = append(out, n.named(t))
		}
	}
	return out
}

// claims reports whether name is one of t's, letter for letter.
func (t *toolClaim) claims(name string) bool {
	for level := range t.level + 1 {
		if t.at(level) == name {
			return true
		}
	}
	return false
}

func (n *Names) named(t *toolClaim) NamedTool { return NamedTool{t.key, n.Name(t.key)} }
