package gate

import "sort"

// trie finds all of a set of values in one pass over a text; it is the automaton of Aho and Corasick. Trying the
// values with the right beginning one after the other is shorter. But an extension's own manifest can name a
// thousand values with one beginning, and its child write lines of nothing else, each of which would then cost the
// bridge a quarter of a second.
//
// The nodes are those of a tree of the values' beginnings, shorter ones first; the first is the root.
type trie []node

const root = 0

// node is one beginning of one or more values.
type node struct {
	kids  int32  // the first of the nodes that are one byte longer, which follow each other by that byte
	count uint16 // of them
	last  byte   // the last byte of the beginning
	fail  int32  // the node of the longest proper end of this beginning that is a beginning itself
	found int32  // the number of the longest value that this beginning ends with; -1: none
}

// newTrie makes the trie of values, which are sorted, different and not empty.
func newTrie(values []string) trie {
	type run struct{ from, to, depth int32 } // the values that have a node's beginning, and its length
	t, runs := trie{{found: -1}}, []run{{to: int32(len(values))}}
	for at := 0; at < len(t); at++ {
		r := runs[at]
		t[at].kids = int32(len(t))
		for i := r.from; i < r.to; {
			if len(values[i]) == int(r.depth) {
				t[at].found = i
				i++
				continue
			}
			kid := run{from: i, depth: r.depth + 1}
			last := values[i][r.depth]
			for i < r.to && values[i][r.depth] == last {
				i++
			}
			kid.to = i
			t, runs = append(t, node{last: last, found: -1}), append(runs, kid)
			t[at].count++
		}
	}
	// In this order what a node falls back to, being shorter, is complete before it.
	for at := range t {
		for k := t[at].kids; k < t[at].kids+int32(t[at].count); k++ {
			if at != root {
				t[k].fail = t.step(t[at].fail, t[k].last)
			}
			if t[k].found < 0 {
				t[k].found = t[t[k].fail].found
			}
		}
	}
	return t
}

// step is the node of the longest end of at's beginning and c that is a beginning.
func (t trie) step(at int32, c byte) int32 {
	for {
		n := t[at]
		kids := t[n.kids : n.kids+int32(n.count)]
		if i := sort.Search(len(kids), func(i int) bool { return kids[i].last >= c }); i < len(kids) && kids[i].last == c {
			return n.kids + int32(i)
		}
		if at == root {
			return root
		}
		at = n.fail
	}
}
