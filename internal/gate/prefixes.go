package gate

import "math/bits"

// prefixes finds the longest of a set of values that is a prefix of a text, in as many steps as the length of the
// longest value has bits: it is the binary search on prefix lengths of Waldvogel, Varghese, Turner and Plattner. Trying
// all values with the right first bytes would be less code. But an extension's manifest can contain a thousand values
// with a common prefix, and its child can write lines that consist of that prefix: each line would then cost the
// bridge a quarter of a second. An Aho-Corasick automaton is faster, but has a node for each byte: one value of
// 900 KiB took 400 MiB. Here a value costs at most one mark for each bit that is set in its length, and a piece
// costs one.
//
// The search determines the length of the longest value bit by bit, from the highest: a bit is set if the text's
// prefix of the resulting length is a mark. So a value needs a mark at each length on the way to its own.
type prefixes struct {
	steps uint // the bits that are set in the length of any value
	marks map[string]mark
}

// mark describes the longest value that is a prefix of the marked text, or the text itself.
type mark struct{ value, size int32 } // index and length of the value; a length of 0 means that there is none

// newPrefixes returns the prefixes of values, which must be distinct, not empty and sorted by length.
func newPrefixes(values []string) prefixes {
	p := prefixes{marks: make(map[string]mark, len(values))}
	for i, v := range values {
		p.steps |= uint(len(v))
		n := 0
		for rest := uint(len(v)); rest&(rest-1) != 0; { // all bits but the last
			step := highest(rest)
			rest, n = rest-step, n+int(step)
			if _, ok := p.marks[v[:n]]; !ok {
				p.marks[v[:n]] = p.longest(v[:n]) // shorter than v, so already added
			}
		}
		p.marks[v] = mark{int32(i), int32(len(v))}
	}
	return p
}

// longest returns the longest value that is a prefix of text.
func (p *prefixes) longest(text string) mark {
	var found mark
	n := 0
	for rest := p.steps; rest != 0; {
		step := highest(rest)
		rest -= step
		if n+int(step) > len(text) {
			continue
		}
		if m, ok := p.marks[text[:n+int(step)]]; ok {
			found, n = m, n+int(step)
		}
	}
	return found
}

// highest returns the highest bit that is set in n, which must not be 0.
func highest(n uint) uint { return 1 << (bits.Len(n) - 1) }
