package jsonrpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// brokenPipe accepts some bytes and then fails, like the pipe of a process that exits.
type brokenPipe struct {
	mu   sync.Mutex
	left int
	try  bool // TryWrite works too
}

var errBroken = errors.New("broken pipe")

func (p *brokenPipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(b), p.left)
	p.left -= n
	if n < len(b) {
		return n, errBroken
	}
	return n, nil
}

func (p *brokenPipe) TryWrite(b []byte) (int, error) {
	if !p.try {
		return 0, nil
	}
	return p.Write(b)
}

// TestUnwritten closes the other side while calls are being written: exactly those of which no byte was written have ran
// "no".
func TestUnwritten(t *testing.T) {
	frame := len(`{"jsonrpc":"2.0","id":1,"method":"work"}` + "\n")
	for _, try := range []bool{true, false} {
		for _, tt := range []struct {
			left int
			want [3]rpc.Ran
		}{
			{0, [3]rpc.Ran{rpc.RanNo, rpc.RanNo, rpc.RanNo}},
			{1, [3]rpc.Ran{rpc.RanMaybe, rpc.RanNo, rpc.RanNo}},
			{frame, [3]rpc.Ran{rpc.RanMaybe, rpc.RanNo, rpc.RanNo}},
			{frame + 1, [3]rpc.Ran{rpc.RanMaybe, rpc.RanMaybe, rpc.RanNo}},
			{2*frame - 1, [3]rpc.Ran{rpc.RanMaybe, rpc.RanMaybe, rpc.RanNo}},
			{2 * frame, [3]rpc.Ran{rpc.RanMaybe, rpc.RanMaybe, rpc.RanNo}},
			{3 * frame, [3]rpc.Ran{rpc.RanMaybe, rpc.RanMaybe, rpc.RanMaybe}},
		} {
			synctest.Test(t, func(t *testing.T) {
				r, w := io.Pipe()
				c := NewConn(r, &brokenPipe{left: tt.left, try: try}, Options{})
				var got [3]rpc.Ran
				var wg sync.WaitGroup
				for n := range got {
					wg.Go(func() {
						_, err := c.Call(context.Background(), "work", nil)
						got[n] = rpc.AsError(err).Details().Ran
						if !errors.Is(err, rpc.CodeExited) {
							t.Errorf("call %d: %v", n, err)
						}
					})
					synctest.Wait() // one after the other
				}
				wg.Go(func() { c.Run(context.Background()) })
				synctest.Wait()
				w.Close()
				wg.Wait()
				if got != tt.want {
					t.Errorf("try %v, %d bytes written: ran %q, want %q", try, tt.left, got, tt.want)
				}
			})
		}
	}
}
