package jsonrpc

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// limited is a Reserve with a limit. It records the maximum.
type limited struct{ limit, used, most atomic.Int64 }

func (m *limited) reserve(n int64) bool {
	used := m.used.Add(n)
	if n > 0 && used > m.limit.Load() {
		m.used.Add(-n)
		return false
	}
	if used > m.most.Load() {
		m.most.Store(used)
	}
	return true
}

// TestLinesReserve reads large lines within a limit of memory, in whole and in pieces: all reserved memory is
// returned, and a line without memory is discarded while the lines before and after it arrive.
func TestLinesReserve(t *testing.T) {
	const small, large = 1 << 20, 16 << 20
	text := strings.Repeat("a", small) + "\n" + `{"id":7,"x":"` + strings.Repeat("b", large) + "\"}\n" + strings.Repeat("c", small) + "\nd\n"
	for name, r := range map[string]io.Reader{
		"whole":  strings.NewReader(text),
		"pieces": shreds{r: bytes.NewReader([]byte(text)), n: rand.New(rand.NewPCG(1, 2))},
	} {
		t.Run(name, func(t *testing.T) {
			var m limited
			m.limit.Store(12 << 20)
			l := NewLineReader(r, 0)
			l.reserve = m.reserve
			for _, want := range []int{small, -1, small, 1} {
				line, err := l.Next()
				if want >= 0 {
					if err != nil || len(line) != want {
						t.Fatalf("a line of %d bytes, %v; want %d", len(line), err, want)
					}
					continue
				}
				long, ok := errors.AsType[*LongLineError](err)
				if !ok || !long.NoMemory || long.Size < large || string(long.ID) != "7" {
					t.Fatalf("%+v, %v; want no memory for the line with id 7", long, err)
				}
			}
			if _, err := l.Next(); err != io.EOF {
				t.Fatalf("at the end: %v", err)
			}
			l.dropBuffer()
			if most := m.most.Load(); m.used.Load() != 0 || most < small || most > m.limit.Load() {
				t.Errorf("%d bytes are still taken; %d at the most", m.used.Load(), most)
			}
		})
	}
}

// TestAnswerWithoutMemory: an answer that is larger than the available memory fails its call, and the next call succeeds.
func TestAnswerWithoutMemory(t *testing.T) {
	var m limited
	m.limit.Store(1 << 20)
	c := dial(t, Options{Reserve: m.reserve}, func(in *bufio.Reader, out io.Writer) {
		for _, size := range []int{4 << 20, 10} {
			line, err := in.ReadBytes('\n')
			if err != nil {
				return
			}
			e, _ := Scan(line)
			io.WriteString(out, `{"jsonrpc":"2.0","id":`+string(e.ID)+`,"result":"`+strings.Repeat("x", size)+"\"}\n")
		}
		in.ReadByte()
	})
	if _, err := c.Call(t.Context(), "m", nil); !errors.Is(err, rpc.CodeOverloaded) || rpc.AsError(err).Details().Ran != rpc.RanMaybe {
		t.Errorf("the large answer: %v, want %v", err, rpc.CodeOverloaded)
	}
	if got, err := c.Call(t.Context(), "m", nil); err != nil || len(got) != 12 {
		t.Errorf("the next answer: %s, %v", got, err)
	}
}

// endlessText returns one endless line, and counts its bytes.
type endlessText struct{ n int64 }

func (e *endlessText) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	e.n += int64(len(p))
	return len(p), nil
}

// TestEndlessLine: an endless line ends the stream, and uses no memory while it is discarded.
func TestEndlessLine(t *testing.T) {
	var m limited
	m.limit.Store(1 << 40)
	e := &endlessText{}
	l := NewLineReader(e, 1<<20)
	l.reserve, l.endless = m.reserve, 4<<20
	long, ok := errors.AsType[*LongLineError](second(l.Next()))
	if !ok || long.Size < 4<<20 {
		t.Errorf("the line: %+v", long)
	}
	if err := second(l.Next()); err == nil || !strings.Contains(err.Error(), "does not end") {
		t.Errorf("after it: %v", err)
	}
	l.dropBuffer()
	if most := m.most.Load(); m.used.Load() != 0 || most > 8<<20 {
		t.Errorf("%d bytes are still taken; %d at the most", m.used.Load(), most)
	}
	if e.n > 8<<20 {
		t.Errorf("%d bytes were read", e.n)
	}
}

func second(_ []byte, err error) error { return err }

// TestKeptAnswerIsCounted: a read buffer that Reply.Keep has given away counts until it is returned.
func TestKeptAnswerIsCounted(t *testing.T) {
	const size = 7 << 20 // fills most of a buffer of 8 MiB, so that it is not copied
	var m limited
	m.limit.Store(1 << 40)
	text := `{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("x", size) + "\"}\n"
	c := NewConn(strings.NewReader(text), io.Discard, Options{Reserve: m.reserve})
	k := &keeper{id: "7", done: make(chan struct{}), left: 1}
	c.Start(&Exchange{Method: "m", Sink: k})
	c.Run(t.Context())
	<-k.done
	if k.got[0].release == nil {
		t.Fatal("the answer was not kept")
	}
	if used := m.used.Load(); used < size || used > 2*size+readBuffer {
		t.Errorf("%d bytes are taken while an answer of %d is kept", used, size)
	}
	k.check(0)
	if used := m.used.Load(); used != 0 {
		t.Errorf("%d bytes are taken after the answer was released", used)
	}
}
