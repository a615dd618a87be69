package mcp

import (
	"bytes"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/plainjson"
)

// complete is the member that a modern result begins with.
const complete = `"resultType":"complete"`

// Complete returns a result as the era wants it: a modern one states that it is complete. A resultType of its own is replaced:
// an extension speaks no version that has another one, and some clients would answer its questions without the user. The other bytes
// are unchanged.
func (e Era) Complete(result []byte) []byte {
	if e == EraLegacy || len(result) == 0 {
		return result
	}
	open, ok := objectStart(result)
	if !ok {
		return result
	}
	if bytes.Contains(result, []byte("resultType")) || bytes.Contains(result, []byte(`\u00`)) { // seldom; to search the text is much faster than to parse it
		if _, ok := jsonrpc.Member(result, "resultType"); ok {
			out, _ := jsonrpc.SetMember(result, "resultType", []byte(`"complete"`)) // it is an object
			return out
		}
	}
	return insert(result, open, complete)
}

// WithContent returns a tool's result with the member content, which clients of several SDKs demand. The other bytes are unchanged.
func WithContent(result []byte) []byte {
	open, ok := objectStart(result)
	if !ok || bytes.HasPrefix(result[open:], []byte(`{"content":`)) {
		return result
	}
	if _, ok := jsonrpc.Member(result, "content"); ok {
		return result
	}
	return insert(result, open, `"content":[]`)
}

// WithoutOtherStructure returns a tool's result without a structuredContent that is no object: SDKs of the legacy era reject a result that has
// one. The other bytes are unchanged.
func WithoutOtherStructure(result []byte) []byte {
	if !bytes.Contains(result, []byte("tructuredContent")) { // seldom with an escaped s
		return result
	}
	if at, ok := jsonrpc.Member(result, "structuredContent"); !ok || isObject(at.In(result)) {
		return result
	}
	return rebuild(result, func(key string, value []byte) []byte {
		if key == "structuredContent" {
			return nil
		}
		return value
	})
}

// uncacheable are the members of a modern result that nobody may cache.
const uncacheable = `"ttlMs":0,"cacheScope":"private"`

// Uncacheable returns the result of resources/read as the era wants it: a modern one states for how long it may be cached.
func (e Era) Uncacheable(result []byte) []byte {
	open, isObject := objectStart(result)
	if _, ok := jsonrpc.Member(result, "ttlMs"); e == EraLegacy || !isObject || ok {
		return result
	}
	return insert(result, open, uncacheable)
}

// objectStart returns where JSON text begins; ok is false if it is no object.
func objectStart(text []byte) (at int, ok bool) {
	at = len(text) - len(bytes.TrimLeft(text, " \t\r\n"))
	return at, at < len(text) && text[at] == '{'
}

// insert returns an object, which begins at open, with more members in front.
func insert(result []byte, open int, members string) []byte {
	out := make([]byte, 0, len(result)+len(members)+1)
	out = append(out, result[:open+1]...)
	out = append(out, members...)
	rest := bytes.TrimLeft(result[open+1:], " \t\r\n")
	if len(rest) > 0 && rest[0] != '}' {
		out = append(out, ',')
	}
	return append(out, rest...)
}

// OneLine returns JSON text without line ends, which separate messages on a stream. A JSON string has no raw line ends,
// so that only white space between tokens changes.
func OneLine(text []byte) []byte {
	if bytes.IndexByte(text, '\n') < 0 && bytes.IndexByte(text, '\r') < 0 {
		return text
	}
	out := bytes.Clone(text)
	for i, c := range out {
		if c == '\n' || c == '\r' {
			out[i] = ' '
		}
	}
	return out
}

// Quote returns s as a JSON string.
func Quote(s string) []byte { return plainjson.AppendString(nil, s) }
