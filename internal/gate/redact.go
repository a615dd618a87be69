package gate

import (
	"encoding/json"
	"maps"
	"net/url"
	"runtime"
	"slices"
	"strings"
)

const (
	// minSecret is the shortest value that is redacted, in bytes: a shorter one would be found in every
	// other word.
	minSecret = 6
	// maxPiece is the length of the pieces in which a longer value is looked for: what is given to Redact may
	// have been cut off within the value, and as much of it as fills pieces is then found.
	maxPiece = 1 << 10
)

// Redactor replaces known values of secrets. A nil Redactor replaces nothing. It never changes, so that it may
// be used by any number of goroutines.
type Redactor struct {
	// seen has a bit set for the hash of the first four bytes of each value, and dismisses nearly every
	// position of a line.
	seen  [64]uint64
	known prefixes
	names []string // of the variables that hold the values in known
}

// NewRedactor makes a Redactor of the values of parent's (KEY=value, as of os.Environ) variables that look secret or
// that allow (requires.env) names, whether or not the child gets them, and of those of add (transport.env with its
// placeholders replaced) whose names look secret or are in allow. A value with an address that contains a password
// counts whatever its name is, and so does the password by itself. What a placeholder has put into another of
// add is known by the name of the variable it came from, if that looks secret or is in allow.
//
// Only values of at least 6 bytes count. Of a value with several lines each line of at least 6 bytes counts by
// itself, without the white space around it. Values are known as they are and as JSON and URLs spell them; one
// that a program has encoded otherwise, in base64 say, is not.
//
// No value is too long to count. One that no program can be started with (Linux takes 128 KiB) is no exception: a
// header has no such bound, and what a value costs is a few times its bytes as JSON and URLs spell them.
func NewRedactor(parent []string, allow []string, add map[string]string) *Redactor {
	return newRedactor(parent, allow, add, runtime.GOOS == "windows")
}

func newRedactor(parent []string, allow []string, add map[string]string, fold bool) *Redactor {
	key := nameKey(fold)
	declared := nameSet(allow, key)
	b := secretSet{}
	consider := func(name, value string) {
		passwords := urlSecrets(value)
		if len(passwords) > 0 || SecretLike(name) || declared[key(name)] {
			b.add(name, value)
		}
		for _, p := range passwords {
			b.add(name, p)
		}
	}
	for _, entry := range parent {
		if name, value, ok := split(entry); ok {
			consider(name, value)
		}
	}
	for name, value := range add {
		consider(name, value)
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
				b.addPieces(name, s)
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

// addPieces adds a value as it is, or, if it is longer than a piece, as pieces that cover it: one behind the other,
// and its last maxPiece bytes.
func (b secretSet) addPieces(name, value string) {
	rest := value
	for ; len(rest) > maxPiece; rest = rest[maxPiece:] {
		b.put(name, rest[:maxPiece])
	}
	b.put(name, value[max(0, len(value)-maxPiece):])
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
	r := &Redactor{}
	values := slices.SortedFunc(maps.Keys(b), func(v, w string) int { return len(v) - len(w) })
	for _, value := range values {
		k := first4(value)
		r.seen[k*hash>>26] |= 1 << (k * hash >> 20 & 63) // as maybe reads it
		r.names = append(r.names, b[value])
	}
	r.known = newPrefixes(values)
	return r
}

// hash is Knuth's multiplier; the upper 12 bits of a product are the number of a bit in seen.
const hash = 2654435761

func first4(s string) uint32 {
	_ = s[3]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

// maybe reports whether a value may begin with the four bytes k.
func (r *Redactor) maybe(k uint32) bool { return r.seen[k*hash>>26]>>(k*hash>>20&63)&1 != 0 }

// Redact returns line with each known value replaced by [NAME], the variable's name; of several values at one
// place the longest counts. Values that overlap become one [NAME], that of the longest of them, so that nothing
// is left of any. A value of more than 1 KiB counts as pieces of that length. line may have several lines. The time
// it takes depends on the line alone, and not on how many values there are or how alike.
func (r *Redactor) Redact(line string) string {
	if r == nil || len(r.names) == 0 {
		return line
	}
	spans := r.find(line)
	if len(spans) == 0 {
		return line
	}
	var b strings.Builder
	done := 0
	for _, s := range spans {
		b.WriteString(line[done:s.begin])
		b.WriteString("[" + r.names[s.longest.value] + "]")
		done = s.end
	}
	b.WriteString(line[done:])
	return b.String()
}

// RedactCut is redact, a Redactor's Redact, for a text whose rest was cut off. It leaves out what may be the
// beginning of a value that the cut has made unrecognisable; nil leaves out nothing.
//
// As much of the beginning as fills pieces is found, so that only the last bytes of text, fewer than a piece has, are
// in doubt. How many bytes they have become cannot be told from the text alone: a name may be longer than the value
// that it stands for. So the last bytes are redacted by themselves, too. Where no value lies across their beginning
// that is how the whole ends. Where one does, what follows it is the same in both.
func RedactCut(redact func(string) string, text string) string {
	if redact == nil {
		return text
	}
	certain := len(strings.TrimSuffix(text, "\uFFFD")) - (maxPiece - 1) // a character that was cut counts by itself
	all, last := redact(text), redact(text[max(0, certain):])
	for all != "" && last != "" && all[len(all)-1] == last[len(last)-1] {
		all, last = all[:len(all)-1], last[:len(last)-1]
	}
	return strings.ToValidUTF8(all, "")
}

// span is a part of a line that values cover, and the longest of them.
type span struct {
	begin, end int
	longest    mark
}

// find returns the spans in line, in its order.
func (r *Redactor) find(line string) []span {
	var spans []span
	for i := range max(0, len(line)-minSecret+1) {
		if !r.maybe(first4(line[i : i+4])) {
			continue
		}
		if m := r.known.longest(line[i:]); m.size > 0 {
			spans = r.cover(spans, span{i, i + int(m.size), m})
		}
	}
	return spans
}

// cover adds a value, which begins behind all before it, and makes it one with the last of them if it overlaps that.
// The pieces of one value are one without overlapping.
func (r *Redactor) cover(spans []span, s span) []span {
	if len(spans) > 0 {
		last := &spans[len(spans)-1]
		piece := s.begin == last.end && s.longest.size == maxPiece && r.names[s.longest.value] == r.names[last.longest.value]
		if s.begin < last.end || piece {
			last.end = max(last.end, s.end)
			if s.longest.size > last.longest.size {
				last.longest = s.longest
			}
			return spans
		}
	}
	return append(spans, s)
}
