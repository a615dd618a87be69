package jsonrpc

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
)

// BenchmarkSplice replaces the id in a request and in its reply, as for each forwarded call.
func BenchmarkSplice(b *testing.B) {
	for _, size := range []int{256, 16 << 10} {
		text := []byte(`{"text":"` + strings.Repeat("x", size) + `"}`)
		reply, err := ParseReply(AppendResult(nil, []byte("123456"), text))
		if err != nil {
			b.Fatal(err)
		}
		var buf []byte
		b.Run(fmt.Sprintf("reply/%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf = reply.AppendTo(buf[:0], []byte(`"the caller's"`))
			}
		})
		b.Run(fmt.Sprintf("request/%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf = AppendRequest(buf[:0], []byte("123456"), "tools/echo", text)
			}
		})
	}
}

// BenchmarkFrame splits a stream into lines.
func BenchmarkFrame(b *testing.B) {
	for _, size := range []int{256, 16 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			lines := NewLineReader(&endless{text: append(bytes.Repeat([]byte{'x'}, size), '\n')}, 0)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if line, err := lines.Next(); err != nil || len(line) != size {
					b.Fatal(len(line), err)
				}
			}
		})
	}
}

// endless returns text again and again, at most a pipe's capacity at once.
type endless struct {
	text []byte
	at   int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p[:min(len(p), readBuffer)], e.text[e.at:])
	e.at = (e.at + n) % len(e.text)
	if n == 0 {
		return 0, io.ErrNoProgress
	}
	return n, nil
}
