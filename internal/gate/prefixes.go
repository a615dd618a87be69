package gate

import "math/bits"

// prefixes finds the longest of a set of values that a text begins with, in as many steps as the length of the
// longest has bits; it is the binary search on lengths of Waldvogel, Varghese, Turner and Plattner. Trying the values
// with the right beginning one after the other is shorter. But an extension's own manifest can name a thousand values
// with one beginning, and its child write lines of nothing else, each of which would then cost the bridge a quarter
// of a second. The automaton of Aho and Corasick is faster, but has a node for each byte: for one value of 900 KiB
// that was 400 MiB. Here a value costs at most one mark for each bit that is set in its length, and a
// piece a single one.
//
// The search is for the length of the longest value: from its highest bit on, a bit is set if with it the text's
// beginning is a mark. A value therefore leaves a mark at each length on the way to its own.
type prefixes struct {
	steps uint // the bits that are set in the length of any value
	marks map[string]mark
}

// mark is the longest value that a beginning of values begins with, or is.
type mark struct{ value, size int32 } // its number and length; a length of 0: none

// newPrefixes knows values, which are different, not empty and sorted by length.
func newPrefixes(values []string) prefixes {
	p := prefixes{marks: make(map[string]mark, len(values))}
	for i, v := range values {
		p.steps |= uint(len(v))
		n := 0
		for rest := uint(len(v)); rest&(rest-1) != 0; { // all bits but the last
			step := highest(rest)
			rest, n = rest-step, n+int(step)
			if _, ok := p.marks[v[:n]]; !ok {
				p.marks[v[:n]] = p.longest(v[:n]) // whatever that is, it is shorter than v and so known by now
			}
		}
		p.marks[v] = mark{int32(i), int32(len(v))}
	}
	return p
}

// longest is the longest value that text begins with.
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

// highest is the highest bit that is set in n, which is not 0.
func highest(n uint) uint { return 1 << (bits.Len(n) - 1) }
