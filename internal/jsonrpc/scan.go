package jsonrpc

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// MaxDepth is the maximum nesting depth of a message. Many parsers fail at about a thousand levels, and some then close
// the connection, so that one deep message would fail all other calls.
const MaxDepth = 512

// Envelope is a JSON-RPC message as slices of the scanned text: only the outermost object is parsed, all values are
// unchanged. A member that is absent is nil; JSON null is not nil.
type Envelope struct {
	ID     []byte // number, string or null
	Method []byte // with its quotes; see MethodName
	Params []byte
	Result []byte
	Error  []byte

	idAt      int  // offset of ID
	versioned bool // has the member jsonrpc, with any value: an object with an id but without it is a log line
	foreign   bool // has members that no message has
	version   bool // and the value is "2.0"
	plain     bool // jsonrpc "2.0", an id, and no duplicate or ambiguous member: the id can be replaced in place
}

// Scan parses one message. In the same pass, without allocation, it checks the whole text against the JSON grammar,
// because a message that some child or caller cannot parse must not be forwarded. Member names are compared exactly, as
// JSON-RPC requires; of duplicate members the last counts. Scan does not check UTF-8: the caller may refuse or replace
// invalid bytes.
func Scan(text []byte) (e Envelope, err error) {
	e.plain = true
	err = walk(text, func(key, value Span) bool { // on the stack: walk only calls it
		e.set(key.In(text), text[value.From:value.To:value.To], value.From)
		return true
	})
	e.plain = e.plain && e.version && e.ID != nil && !(e.Method != nil && e.IsResponse())
	return e, err
}

// set stores a member; its value is at the offset at.
func (e *Envelope) set(key, value []byte, at int) {
	again := false // a member like this one occurred before, or a parser may take it for one
	switch string(key) {
	case `"id"`:
		again = e.ID != nil
		e.ID, e.idAt = value, at
	case `"method"`:
		if again = string(value) == "null"; !again { // an answer that was written with all members
			e.Method = value
		}
	case `"params"`:
		e.Params = value
	case `"result"`:
		again = e.Result != nil
		e.Result = value
	case `"error"`:
		again = e.Error != nil
		e.Error = value
	case `"jsonrpc"`:
		again = e.versioned
		e.versioned, e.version = true, string(value) == `"2.0"`
	default:
		again, e.foreign = disguised(key), true
	}
	e.plain = e.plain && !again
}

// disguised reports whether a parser may read key, which includes its quotes, as one of the envelope's members although
// the bytes differ: it has an escape, or differs only in case, which Go's encoding/json ignores.
func disguised(key []byte) bool {
	if bytes.IndexByte(key, '\\') >= 0 {
		return true
	}
	for _, own := range [...]string{`"id"`, `"result"`, `"error"`, `"jsonrpc"`, `"method"`, `"params"`} {
		if bytes.EqualFold(key, []byte(own)) {
			return true
		}
	}
	return false
}

// MethodName returns the method without its quotes, or "" if it is missing or not a string.
func (e *Envelope) MethodName() string {
	m := e.Method
	if len(m) < 2 || m[0] != '"' {
		return ""
	}
	if bytes.IndexByte(m, '\\') < 0 {
		return string(m[1 : len(m)-1])
	}
	var s string
	if json.Unmarshal(m, &s) != nil {
		return ""
	}
	return s
}

// IsRequest reports whether the message is a request, which has an id.
func (e *Envelope) IsRequest() bool { return e.Method != nil && e.ID != nil && !e.IsResponse() }

// IsNotification reports whether the message is a notification, which has no id.
func (e *Envelope) IsNotification() bool { return e.Method != nil && e.ID == nil }

// IsResponse reports whether the message answers a request. Some programs repeat the method of the request.
func (e *Envelope) IsResponse() bool {
	if e.Method != nil {
		return e.versioned && (e.Result != nil && string(e.Result) != "null" || isError(e))
	}
	return e.Result != nil || e.Error != nil
}

// ValidID reports whether id is valid in a request: a number or a string of at most 256 bytes as it is written, with its
// quotes. JSON-RPC also allows null, which is refused here, since the answer to a message that cannot be parsed has the id
// null too.
func ValidID(id []byte) bool {
	if len(id) == 0 || len(id) > 256 {
		return false
	}
	c := id[0]
	return c == '"' || c == '-' || '0' <= c && c <= '9'
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

func end(b []byte, i int) error {
	if i = space(b, i); i < len(b) {
		return syntax(b, i, "the end of the message")
	}
	return nil
}

func syntax(b []byte, i int, want string) error {
	if i >= len(b) {
		return fmt.Errorf("want %s at byte %d, where the message ends", want, i)
	}
	return fmt.Errorf("want %s at byte %d, have %q", want, i, b[i])
}

// skipValue returns the offset after the value that starts at i. It stores the kind of each open container in one bit
// instead of recursing, since hostile text could exhaust the stack.
func skipValue(b []byte, i int) (int, error) {
	var objects [MaxDepth / 64]uint64
	depth := 0
	var err error
value:
	if i >= len(b) {
		return i, syntax(b, i, "a value")
	}
	switch c := b[i]; {
	case c == '{', c == '[':
		if depth >= MaxDepth-1 {
			return i, fmt.Errorf("nested deeper than %d at byte %d", MaxDepth, i)
		}
		word, bit := &objects[depth/64], uint64(1)<<(depth%64)
		depth++
		i = space(b, i+1)
		if *word &^= bit; c == '{' {
			*word |= bit
		}
		if i < len(b) && b[i] == c+2 { // the closing one, in ASCII
			depth--
			i++
			break
		}
		if c == '{' {
			goto key
		}
		goto value
	default:
		if i, err = skipScalar(b, i); err != nil {
			return i, err
		}
	}
	for depth > 0 {
		object := objects[(depth-1)/64]&(1<<((depth-1)%64)) != 0
		i = space(b, i)
		if i >= len(b) {
			return i, syntax(b, i, `"," or the end of a container`)
		}
		switch {
		case b[i] == ',':
			i = space(b, i+1)
			if object {
				goto key
			}
			goto value
		case object && b[i] == '}', !object && b[i] == ']':
			depth--
			i++
		default:
			return i, syntax(b, i, `"," or the end of a container`)
		}
	}
	return i, nil
key:
	if i, err = skipKey(b, i); err != nil {
		return i, err
	}
	goto value
}

// skipKey returns the offset of the value that belongs to the key at i.
func skipKey(b []byte, i int) (int, error) {
	i, err := skipString(b, i)
	if err != nil {
		return i, err
	}
	if i = space(b, i); i >= len(b) || b[i] != ':' {
		return i, syntax(b, i, `":"`)
	}
	return space(b, i+1), nil
}

// skipScalar returns the offset after the string, number, boolean or null at i.
func skipScalar(b []byte, i int) (int, error) {
	switch c := b[i]; {
	case c == '"':
		return skipString(b, i)
	case c == '-', '0' <= c && c <= '9':
		return skipNumber(b, i)
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if i+len(word) <= len(b) && string(b[i:i+len(word)]) == word {
			return i + len(word), nil
		}
	}
	return i, syntax(b, i, "a value")
}

// Words with 0x01, and with 0x80, in each of their eight bytes: see stops.
const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// skipString returns the offset after the string with its opening quote at i.
func skipString(b []byte, i int) (int, error) {
	if i >= len(b) || b[i] != '"' {
		return i, syntax(b, i, "a string")
	}
	i++
	for {
		for ; i+32 <= len(b); i += 32 { // a long text takes a fifth of the time of a loop over single bytes
			p := (*[32]byte)(b[i:])
			if stops(p[0:8])|stops(p[8:16])|stops(p[16:24])|stops(p[24:32]) != 0 {
				break
			}
		}
		for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= 0x20 {
			i++
		}
		if i >= len(b) {
			return i, syntax(b, i, `'"'`)
		}
		switch b[i] {
		case '"':
			return i + 1, nil
		case '\\':
			n := escape(b[i:])
			if n == 0 {
				return i, fmt.Errorf("bad escape in a string at byte %d", i)
			}
			i += n
		default:
			return i, fmt.Errorf("control character 0x%02x in a string at byte %d", b[i], i)
		}
	}
}

// stops is not 0 if one of eight bytes is a stop: a quote, a backslash or a control character. A byte above a real stop
// may be marked too, but never one below. Quotes and control characters take one test, since of all bytes that are below
// 0x21 after the bit 0x02 is inverted, only 0x22 was not below 0x20.
func stops(eight []byte) uint64 {
	w := binary.LittleEndian.Uint64(eight)
	slash := w ^ ones*'\\'
	return ((w^ones*0x02-ones*0x21)&^w | (slash-ones)&^slash) & highs
}

// escape returns the length of the escape sequence at the start of b, or 0 if it is invalid.
func escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) < 6 {
			return 0
		}
		for _, c := range b[2:6] {
			if !('0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f') {
				return 0
			}
		}
		return 6
	}
	return 0
}

// skipNumber returns the offset after the number at i: -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
func skipNumber(b []byte, i int) (int, error) {
	digits := func() bool {
		from := i
		for i < len(b) && '0' <= b[i] && b[i] <= '9' {
			i++
		}
		return i > from
	}
	if b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if !digits() {
		return i, syntax(b, i, "a digit")
	}
	if i < len(b) && b[i] == '.' {
		i++
		if !digits() {
			return i, syntax(b, i, "a digit")
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if !digits() {
			return i, syntax(b, i, "a digit")
		}
	}
	return i, nil
}
