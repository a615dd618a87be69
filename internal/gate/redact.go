package gate

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// minSecret is the shortest value that is redacted, in bytes: a shorter one would match ordinary words.
	minSecret = 6
	// maxPiece is the length of the pieces into which a longer value is divided: a text that was cut off within the
	// value still contains some of its pieces.
	maxPiece = 1 << 10
)

// Redactor replaces the values of secrets in texts. A nil Redactor replaces nothing. A Redactor is immutable and safe
// for concurrent use.
type Redactor struct {
	// seen has a bit set for the hash of the first four bytes of each value. It excludes nearly every position of a
	// line without a search.
	seen   [64]uint64
	values []secret // sorted by text
}

// secret is a value that is replaced.
type secret struct {
	text, name string
	shorter    int // the index of the longest other value that it begins with, or -1
}

// NewRedactor returns a Redactor for the values of all variables of parent (KEY=value, as in os.Environ) and add
// (transport.env with its placeholders replaced) whose names look secret or are in allow (requires.env). The variables
// of parent count whether or not the child gets them. A value with an address that contains a password counts whatever
// its name, and so does the password alone. Of a value that counts, each token after Bearer or Basic also counts alone.
// A value that a placeholder inserted into another variable of add is replaced by the name of the variable that it came
// from, if that looks secret or is in allow.
//
// Only values of at least 6 bytes count. If a value has several lines, each line of at least 6 bytes counts, without
// the white space around it. Values are found in the original form and as encoded in JSON and in URLs, but not in other
// encodings, such as base64.
//
// The length of values is not limited, not even to what a program can be started with (128 KiB on Linux), since values
// are also used in HTTP headers. A value takes a few times its length as encoded in JSON and in URLs.
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
			passwords = append(passwords, Tokens(value)...)
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

// secretSet maps values to names of variables. If several variables have the same value, the alphabetically first name
// is used, so that the result does not depend on map order.
type secretSet map[string]string

func (b secretSet) add(name, value string) {
	name = strings.ToValidUTF8(name, "\uFFFD")
	for line := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == '\n' || r == '\r' }) {
		t := strings.TrimSpace(line)
		if t == "" {
			continue // would blank out every indented line
		}
		if len(t) >= minSecret {
			line = t // programs often trim values too
		}
		if len(line) >= minSecret {
			for _, s := range spellings(line) {
				b.addPieces(name, s)
			}
		}
	}
}

// spellings returns the forms in which a program may show a value by accident: unchanged, as valid UTF-8 (package child
// converts each line of stderr), in a JSON log line, in the URL of a failed request. Languages differ in what they escape.
func spellings(value string) []string {
	valid, query := strings.ToValidUTF8(value, "\uFFFD"), url.QueryEscape(value)
	component := strings.ReplaceAll(query, "+", "%20")
	plain := inJSON(valid, false)
	return []string{value, valid, plain, inJSON(valid, true), inASCII(plain), strings.ReplaceAll(inASCII(plain), "/", `\/`), query, url.PathEscape(value),
		strings.ReplaceAll(component, "%2F", "/"), // quote of Python
		unescaped.Replace(component),              // encodeURIComponent of JavaScript
	}
}

// unescaped has the characters that JavaScript does not escape in a URL.
var unescaped = strings.NewReplacer("%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*")

// inASCII replaces the other characters of a JSON text, as json.dumps of Python does.
func inASCII(s string) string {
	var b strings.Builder
	for _, unit := range utf16.Encode([]rune(s)) {
		if unit < utf8.RuneSelf {
			b.WriteByte(byte(unit))
		} else {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
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

// addPieces adds a value: in one piece if it is short enough, otherwise as consecutive pieces and its last maxPiece
// bytes.
func (b secretSet) addPieces(name, value string) {
	rest := value
	for ; len(rest) > maxPiece; rest = rest[maxPiece:] {
		b.put(name, rest[:maxPiece])
	}
	b.put(name, value[max(0, len(value)-maxPiece):])
}

func (b secretSet) put(name, value string) {
	if len(value) < minSecret {
		return // a spelling can be shorter than the value: in valid text a run of invalid bytes is one character
	}
	if old, ok := b[value]; !ok || name < old {
		b[value] = name
	}
}

func (b secretSet) redactor() *Redactor {
	r := &Redactor{values: make([]secret, 0, len(b))}
	for i, value := range slices.Sorted(maps.Keys(b)) {
		k := first4(value)
		r.seen[k*hash>>26] |= 1 << (k * hash >> 20 & 63) // read by maybe
		shorter := i - 1
		for shorter >= 0 && !strings.HasPrefix(value, r.values[shorter].text) {
			shorter = r.values[shorter].shorter
		}
		r.values = append(r.values, secret{value, b[value], shorter})
	}
	return r
}

// longest returns the longest value that text begins with, or nil. All values between it and text in their order begin
// with it, so it is the last one before text or is found over the shorter ones of that. Trying all values with the same
// first bytes would be less code, but a manifest can declare a thousand values with a common prefix, and its child can
// write lines that consist of that prefix: each line would cost the bridge a quarter of a second.
func (r *Redactor) longest(text string) *secret {
	text = text[:min(len(text), maxPiece)]
	i, found := slices.BinarySearchFunc(r.values, text, func(s secret, text string) int { return strings.Compare(s.text, text) })
	if !found {
		i--
	}
	if i < 0 {
		return nil
	}
	common := 0
	for last := r.values[i].text; common < min(len(last), len(text)) && last[common] == text[common]; {
		common++
	}
	for i >= 0 && len(r.values[i].text) > common {
		i = r.values[i].shorter
	}
	if i < 0 {
		return nil
	}
	return &r.values[i]
}

// hash is Knuth's multiplier; the upper 12 bits of a product are the index of a bit in seen.
const hash = 2654435761

func first4(s string) uint32 {
	_ = s[3]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

// maybe reports whether a value may begin with the four bytes k.
func (r *Redactor) maybe(k uint32) bool { return r.seen[k*hash>>26]>>(k*hash>>20&63)&1 != 0 }

// Redact returns line with each known value replaced by [NAME], the variable's name. If several values begin at the
// same position, the longest counts. Overlapping values become one [NAME], the name of the longest of them, so that no
// part of any remains. A value of more than 1 KiB counts as pieces of that length. line may have several lines. The
// time depends on the line only, not on the number of values or their similarity.
func (r *Redactor) Redact(line string) string {
	if r == nil || len(r.values) == 0 {
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
		b.WriteString("[" + s.longest.name + "]")
		done = s.end
	}
	b.WriteString(line[done:])
	return b.String()
}

// RedactCut calls redact, the Redact method of a Redactor, for a text that was cut off at its end. It also leaves out
// the end of the text if that may be the first part of a value that is no longer recognisable; a nil redact leaves out
// nothing.
//
// Whole pieces of a value are found, so only the last maxPiece-1 bytes of text are in doubt. Their length in the result
// cannot be computed, since a name may be longer than the value that it replaces. So these bytes are also redacted
// alone, and the common suffix of both results is removed: it is all of the second result, or, if a value extends over
// the start of these bytes, what follows that value.
func RedactCut(redact func(string) string, text string) string {
	if redact == nil {
		return text
	}
	certain := len(strings.TrimSuffix(text, "\uFFFD")) - (maxPiece - 1) // U+FFFD is the rest of a character that was cut
	all, last := redact(text), redact(text[max(0, certain):])
	for all != "" && last != "" && all[len(all)-1] == last[len(last)-1] {
		all, last = all[:len(all)-1], last[:len(last)-1]
	}
	return strings.ToValidUTF8(all, "")
}

// span is a part of a line that consists of one or more values, and the longest of them.
type span struct {
	begin, end int
	longest    *secret
}

// find returns the spans of line in order.
func (r *Redactor) find(line string) []span {
	var spans []span
	for i := range max(0, len(line)-minSecret+1) {
		if !r.maybe(first4(line[i : i+4])) {
			continue
		}
		if s := r.longest(line[i:]); s != nil {
			spans = cover(spans, span{i, i + len(s.text), s})
		}
	}
	return spans
}

// cover adds a value, which begins after the start of all spans so far. It extends the last span if the two overlap, or
// if they are adjacent pieces of one value.
func cover(spans []span, s span) []span {
	if len(spans) > 0 {
		last := &spans[len(spans)-1]
		piece := s.begin == last.end && len(s.longest.text) == maxPiece && s.longest.name == last.longest.name
		if s.begin < last.end || piece {
			last.end = max(last.end, s.end)
			if len(s.longest.text) > len(last.longest.text) {
				last.longest = s.longest
			}
			return spans
		}
	}
	return append(spans, s)
}
