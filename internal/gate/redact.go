package gate

import (
	"encoding/json"
	"net/url"
	"runtime"
	"slices"
	"strings"
)

const (
	// minSecret is the shortest value that is redacted, in bytes: a shorter one would be found in every
	// other word.
	minSecret = 6
	// maxPiece is the length of the pieces in which a longer value is looked for, too: what is given to
	// Redact may have been cut off within the value, and as much of it as fills pieces is then found.
	maxPiece = 1 << 10
)

// Redactor replaces known values of secrets. A nil Redactor replaces nothing. It never changes, so that it may
// be used by any number of goroutines.
type Redactor struct {
	// seen has a bit set for the hash of the first four bytes of each value, and dismisses nearly every
	// position of a line. A search for one value after the other would be shorter, but each line of a
	// private key is a value, and every line of stderr would pay for all of them.
	seen    [64]uint64
	secrets map[uint32][]secret // by those four bytes, longest value first
}

// secret is a value and the name of the variable that holds it.
type secret struct{ value, name string }

// NewRedactor knows the values of parent's (KEY=value, as of os.Environ) variables that look secret or that
// allow (requires.env) names, whether or not the child gets them, and those of add (transport.env with its
// placeholders replaced) whose names look secret or are in allow. What a placeholder has put into another of
// add is known by the name of the variable it came from, if that looks secret or is in allow.
//
// Only values of at least 6 bytes count. Of a value with several lines each line of at least 6 bytes counts by
// itself, without the white space around it. Values are known as they are and as JSON and URLs spell them; one
// that a program has encoded otherwise, in base64 say, is not.
func NewRedactor(parent []string, allow []string, add map[string]string) *Redactor {
	return newRedactor(parent, allow, add, runtime.GOOS == "windows")
}

func newRedactor(parent []string, allow []string, add map[string]string, fold bool) *Redactor {
	key := nameKey(fold)
	declared := nameSet(allow, key)
	b := secretSet{}
	for _, entry := range parent {
		if name, value, ok := split(entry); ok && (SecretLike(name) || declared[key(name)]) {
			b.add(name, value)
		}
	}
	for name, value := range add {
		if SecretLike(name) || declared[key(name)] {
			b.add(name, value)
		}
	}
	return b.redactor()
}

// secretSet gathers values; of the names of a value the first in order wins, so that it is always the same.
type secretSet map[string]string

func (b secretSet) add(name, value string) {
	name = strings.ToValidUTF8(name, "\uFFFD")
	for line := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == '\n' || r == '\r' }) {
		t := strings.TrimSpace(line)
		if t == "" {
			continue // would blank out every indented line
		}
		if len(t) >= minSecret {
			line = t // a program is likely to trim it, too
		}
		if len(line) >= minSecret {
			for _, s := range spellings(line) {
				b.addWhole(name, s)
			}
		}
	}
}

// spellings are the ways in which a value gets into the output of a program that did not mean to show it: as it
// is, as it is after child has made a line of stderr valid UTF-8, in a JSON log line, in the URL of a failed
// request.
func spellings(value string) []string {
	valid := strings.ToValidUTF8(value, "\uFFFD")
	return []string{value, valid, inJSON(valid, false), inJSON(valid, true), url.QueryEscape(value), url.PathEscape(value)}
}

func inJSON(s string, escapeHTML bool) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(escapeHTML)
	if enc.Encode(s) != nil {
		return s
	}
	return strings.TrimSuffix(b.String(), "\"\n")[1:]
}

func (b secretSet) addWhole(name, value string) {
	b.put(name, value)
	for ; len(value) > maxPiece; value = value[maxPiece:] {
		b.put(name, value[:maxPiece])
	}
}

func (b secretSet) put(name, value string) {
	if len(value) < minSecret {
		return // as valid text: a run of invalid bytes becomes a single character
	}
	if old, ok := b[value]; !ok || name < old {
		b[value] = name
	}
}

func (b secretSet) redactor() *Redactor {
	r := &Redactor{secrets: make(map[uint32][]secret, len(b))}
	for value, name := range b {
		k := first4(value)
		r.seen[k*hash>>26] |= 1 << (k * hash >> 20 & 63) // as maybe reads it
		r.secrets[k] = append(r.secrets[k], secret{value, name})
	}
	for _, list := range r.secrets {
		slices.SortFunc(list, func(a, b secret) int { return len(b.value) - len(a.value) })
	}
	return r
}

// hash is Knuth's multiplier; the upper 12 bits of a product are the number of a bit in seen.
const hash = 2654435761

func first4(s string) uint32 {
	_ = s[3]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

// Redact returns line with each known value replaced by [NAME], the variable's name; of several values at one
// place the longest counts. Values that overlap become one [NAME], that of the longest of them, so that nothing
// is left of any. It may have several lines.
func (r *Redactor) Redact(line string) string {
	if r == nil || len(r.secrets) == 0 {
		return line
	}
	var b strings.Builder
	done := 0
	for {
		begin, end, name := r.next(line, done)
		if end == 0 {
			break
		}
		b.WriteString(line[done:begin])
		b.WriteString("[" + name + "]")
		done = end
	}
	if done == 0 {
		return line
	}
	b.WriteString(line[done:])
	return b.String()
}

// next returns where the first value at or behind from begins, where those that overlap with it end, and the
// name of the longest of them. Without any end is 0.
func (r *Redactor) next(line string, from int) (begin, end int, name string) {
	longest := 0
	for i := from; i+minSecret <= len(line) && (end == 0 || i <= end); i++ {
		k := first4(line[i : i+4])
		if !r.maybe(k) {
			continue
		}
		s, ok := r.at(k, line[i:])
		if !ok {
			continue
		}
		if n := len(s.value); i == end && end > 0 && (n != maxPiece || s.name != name) {
			break // a value of its own; the pieces of one are one
		} else if end == 0 {
			begin, longest, name = i, n, s.name
		} else if n > longest {
			longest, name = n, s.name
		}
		end = max(end, i+len(s.value))
	}
	return begin, end, name
}

// maybe reports whether a value may begin with the four bytes k.
func (r *Redactor) maybe(k uint32) bool { return r.seen[k*hash>>26]>>(k*hash>>20&63)&1 != 0 }

// at returns the longest value that rest begins with; its first four bytes are k.
func (r *Redactor) at(k uint32, rest string) (secret, bool) {
	for _, s := range r.secrets[k] {
		if strings.HasPrefix(rest, s.value) {
			return s, true
		}
	}
	return secret{}, false
}
