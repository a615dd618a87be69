package jsonrpc

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// stopped is a peer that reads nothing until let is closed.
type stopped struct {
	let chan struct{}
	attempts
}

func (s *stopped) Write(p []byte) (int, error) {
	<-s.let
	return s.attempts.Write(p)
}

// withStoppedPeer runs f with a Conn that is blocked while it writes its first request, and with the pipe that the peer
// writes to. f must let the peer continue at its end.
func withStoppedPeer(t *testing.T, f func(c *Conn, peer *stopped, in *io.PipeWriter)) {
	synctest.Test(t, func(t *testing.T) {
		r, in := io.Pipe()
		peer := &stopped{let: make(chan struct{})}
		c := NewConn(r, struct{ io.Writer }{peer}, Options{})
		var wg sync.WaitGroup
		wg.Go(func() { c.Run(t.Context()) }) // ends when in is closed
		c.Start(&Exchange{Method: "first", Sink: make(sinkChan, 1)})
		synctest.Wait()
		f(c, peer, in)
		in.Close()
		wg.Wait()
	})
}

// TestEndedWhileQueued ends exchanges that are queued for a peer that reads nothing: the Conn must not keep them in
// memory.
func TestEndedWhileQueued(t *testing.T) {
	const n = 20
	for _, tt := range []struct {
		name string
		end  func(c *Conn, x *Exchange, in *io.PipeWriter)
		code rpc.Code // 0: with a result
	}{
		{"cancelled", func(c *Conn, x *Exchange, _ *io.PipeWriter) { c.Cancel(x) }, rpc.CodeCancelled},
		{"out of time", func(*Conn, *Exchange, *io.PipeWriter) {}, rpc.CodeTimeout},
		{"answered too early", func(_ *Conn, x *Exchange, in *io.PipeWriter) {
			fmt.Fprintf(in, `{"jsonrpc":"2.0","id":%d,"result":1}`+"\n", x.ID())
		}, 0},
		{"lost", func(_ *Conn, _ *Exchange, in *io.PipeWriter) { in.Close() }, rpc.CodeExited},
	} {
		t.Run(tt.name, func(t *testing.T) {
			withStoppedPeer(t, func(c *Conn, peer *stopped, in *io.PipeWriter) {
				sink := make(sinkChan, n)
				var started []*Exchange
				for range n {
					x := &Exchange{Method: "m", Params: make([]byte, 100<<10), Deadline: time.Now().Add(time.Minute), Sink: sink}
					c.Start(x)
					started = append(started, x)
				}
				started = append(started[n/2:], started[:n/2]...) // begin in the middle
				ours := started[0]                                // must not keep the others in memory
				var others []weak.Pointer[Exchange]
				for i, x := range started {
					if i > 0 {
						others = append(others, weak.Make(x))
					}
					if len(sink) == i { // one may end them all
						tt.end(c, x, in)
						synctest.Wait()
					}
				}
				started = nil
				for range n {
					r := <-sink
					if r.ErrorCode() != tt.code || r.Err != nil && r.Err.Details().Ran != rpc.RanNo {
						t.Errorf("ended with %v, want code %d and ran no", r.Err, tt.code)
					}
				}
				runtime.GC()
				for i, p := range others {
					if p.Value() != nil {
						t.Errorf("exchange %d is still kept", i)
					}
				}
				runtime.KeepAlive(ours)
				close(peer.let)
				synctest.Wait()
				if got := peer.methods(); got != "first" {
					t.Errorf("written: %q", got)
				}
			})
		})
	}
}

// TestQueueWithGaps removes exchanges from each position of the write queue, starts some of them again, and checks what
// is written.
func TestQueueWithGaps(t *testing.T) {
	for _, tt := range []struct {
		name       string
		out, again string
		want       string
	}{
		{"none", "", "", "a b note c d"},
		{"the first", "a", "", "b note c d"},
		{"the last", "d", "", "a b note c"},
		{"in the middle", "b", "", "a note c d"},
		{"neighbours", "b a", "", "note c d"},
		{"the last two", "c d", "", "a b note"},
		{"all but a notification", "b d a c", "", "note"},
		{"the first again", "a", "a", "b note c d a"},
		{"the last again", "d", "d", "a b note c d"},
		{"in the middle again", "c b", "b c", "a note d b c"},
		{"all again", "a b c d", "d c b a", "note d c b a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			withStoppedPeer(t, func(c *Conn, peer *stopped, _ *io.PipeWriter) {
				sink := make(sinkChan, 10)
				of := map[string]*Exchange{}
				for _, name := range strings.Fields("a b note c d") {
					if name == "note" {
						if err := c.Notify(name, nil); err != nil {
							t.Error(err)
						}
						continue
					}
					of[name] = &Exchange{Method: name, Sink: sink}
					c.Start(of[name])
				}
				for _, name := range strings.Fields(tt.out) {
					if id, ok := c.Cancel(of[name]); !ok || id != 0 {
						t.Errorf("%s: cancelled with id %d, %v", name, id, ok)
					}
				}
				for _, name := range strings.Fields(tt.again) {
					c.Start(of[name])
				}
				close(peer.let)
				synctest.Wait()
				if got := peer.methods(); got != "first | "+tt.want {
					t.Errorf("written: %q, want %q", got, "first | "+tt.want)
				}
				c.mu.Lock()
				defer c.mu.Unlock()
				if c.out.head != nil || c.out.tail != nil || c.out.raws != 0 || c.out.writing {
					t.Errorf("left: head %v, tail %v, %d raws, writing %v", c.out.head, c.out.tail, c.out.raws, c.out.writing)
				}
			})
		})
	}
}

// TestHeldAndCancelled: if all held exchanges are cancelled, Flush writes nothing.
func TestHeldAndCancelled(t *testing.T) {
	a := &attempts{}
	c := NewConn(nil, a, Options{})
	for range 3 {
		x := &Exchange{Method: "m", Sink: make(sinkChan, 1), Hold: true}
		c.Start(x)
		c.Cancel(x)
	}
	c.Flush()
	if len(a.all) > 0 {
		t.Errorf("written: %q", a.all)
	}
}
