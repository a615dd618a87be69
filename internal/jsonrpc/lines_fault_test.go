package jsonrpc

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// chunked returns a text in pieces with the lengths in cuts, some of them empty.
type chunked struct {
	text, cuts []byte
	n          int
}

func (c *chunked) Read(p []byte) (int, error) {
	if len(c.text) == 0 {
		return 0, io.EOF
	}
	size := len(p)
	if len(c.cuts) > 0 {
		size = min(size, int(c.cuts[c.n%len(c.cuts)]))
		c.n++
		if c.n%(len(c.cuts)+1) == 0 {
			size = max(size, 1) // make progress
		}
	}
	n := copy(p[:size], c.text)
	c.text = c.text[n:]
	return n, nil
}

// FuzzLines compares a LineReader with the simplest way to split a text into lines.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb\r\n\n{\"id\":7}\nlast"), []byte{1, 2, 0, 3}, uint16(4))
	f.Add([]byte(strings.Repeat("x", 9000)+"\n"+strings.Repeat("y", 70000)+"\nz\n"), []byte{255, 254}, uint16(10000))
	f.Add([]byte(strings.Repeat(strings.Repeat("x", 20000)+"\n"+"y\n", 5)), []byte{}, uint16(65535))
	f.Fuzz(func(t *testing.T, text, cuts []byte, limit uint16) {
		if limit == 0 {
			return
		}
		zero := true
		for _, c := range cuts {
			zero = zero && c == 0
		}
		if zero {
			cuts = nil
		}
		text = bytes.TrimLeft(bytes.Repeat(text, int(limit)%7+1), "\ufeff")
		l := NewLineReader(&chunked{text: text, cuts: cuts}, int(limit))
		checkLines(t, l, text)
		if l.buf != nil {
			t.Errorf("at the end there is a buffer of %d bytes", cap(l.buf))
		}
	})
}

func checkLines(t *testing.T, l *LineReader, text []byte) {
	t.Helper()
	for rest := text; len(rest) > 0; {
		want, after, _ := bytes.Cut(rest, []byte{'\n'})
		rest = after
		got, err := l.Next()
		if len(want) > l.max {
			long, ok := errors.AsType[*LongLineError](err)
			if !ok || long.Size != int64(len(want)) || long.Limit != int64(l.max) {
				t.Fatalf("a line of %d bytes with limit %d: %q, %v", len(want), l.max, got, err)
			}
			continue
		}
		if want := bytes.TrimSuffix(want, []byte{'\r'}); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("line %q, %v; want %q", got, err, want)
		}
	}
	if line, err := l.Next(); err != io.EOF {
		t.Fatalf("at the end: %q, %v", line, err)
	}
	if max := 4*l.max + 2*readBuffer; cap(l.buf) > max {
		t.Fatalf("the buffer has %d bytes, for lines of %d", cap(l.buf), l.max)
	}
}

// TestIDOfLongLine finds the id where SDKs write it, and never one of another object.
func TestIDOfLongLine(t *testing.T) {
	const long = 10_000
	text := strings.Repeat("x", long)
	for _, tt := range []struct{ line, want string }{
		{`{"jsonrpc":"2.0","id":7,"result":{"text":"LONG"}}`, `7`},
		{` { "jsonrpc" : "2.0", "method" : "tools/call", "id" : "a\"b" , "params":{"text":"LONG"}}`, `"a\"b"`},
		{`{"result":{"text":"LONG","id":8},"jsonrpc":"2.0","id":7}`, `7`},
		{`{"result":{"text":"LONG"},"id":-1.5e3,"jsonrpc":"2.0"} `, `-1.5e3`},
		{`{"id":7,"result":"LONG","x":{"id":8}}`, `7`},
		{`{"result":{"text":"LONG","id":8}}`, ``},
		{`{"result":"LONG\",\"id\":8}"}`, ``},
		{`[{"id":7,"result":"LONG"},{"x":1,"id":8}]`, ``},
		{`["LONG",{"x":1,"id":8}`, ``},
		{`{"id":[7],"result":"LONG"}`, ``},
		{`{"id":7.,"result":"LONG"}`, ``},
	} {
		line := strings.Replace(tt.line, "LONG", text, 1)
		for _, cut := range []byte{1, 7, 255} {
			_, err := NewLineReader(&chunked{text: []byte(line + "\n"), cuts: []byte{cut}}, long/2).Next()
			e, ok := errors.AsType[*LongLineError](err)
			if !ok || string(e.ID) != tt.want {
				t.Errorf("%s in pieces of %d: %v, id %s; want %s", tt.line, cut, err, e.ID, tt.want)
			}
		}
	}
}
