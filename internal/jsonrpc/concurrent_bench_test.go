package jsonrpc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// BenchmarkConcurrentCalls does what a bridge does with a child: one goroutine starts exchanges and the reader ends them,
// with many in flight, over pipes to a peer that echoes as fast as bytes can be copied.
func BenchmarkConcurrentCalls(b *testing.B) {
	for _, flight := range []int{1, 64} {
		for _, size := range []int{256, 16 << 10} {
			b.Run(fmt.Sprintf("flight=%d/size=%d", flight, size), func(b *testing.B) {
				c := pipePair(b, echoFast)
				params := json.RawMessage(`"` + strings.Repeat("x", size) + `"`)
				free := make(unused, flight)
				for range flight {
					free <- &Exchange{Method: "echo", Params: params, Sink: free}
				}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					x := <-free
					if x.Params == nil {
						b.Fatal("a call failed")
					}
					c.Start(x)
				}
				for range flight {
					<-free
				}
			})
		}
	}
}

// unused contains the exchanges that are not in flight.
type unused chan *Exchange

func (c unused) Deliver(x *Exchange, r Reply) {
	if r.Err != nil || len(r.env.Result) != len(x.Params) {
		x.Params = nil
	}
	c <- x
}

// echoFast is an echo that finds the parts of a request at fixed offsets.
func echoFast(r io.Reader, w io.Writer) {
	const id, method, params = `{"jsonrpc":"2.0","id":`, `,"method":`, `,"params":`
	in, out := bufio.NewReaderSize(r, 64<<10), bufio.NewWriterSize(w, 64<<10)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			if !errors.Is(err, io.EOF) {
				panic(err)
			}
			return
		}
		idEnd := bytes.Index(line, []byte(method))
		at := bytes.Index(line, []byte(params))
		out.Write(line[:idEnd])
		out.WriteString(`,"result":`)
		out.Write(line[at+len(params):])
		if in.Buffered() == 0 {
			out.Flush()
		}
	}
}
