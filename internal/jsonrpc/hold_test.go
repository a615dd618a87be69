package jsonrpc

import (
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// attempts records the bytes of each TryWrite.
type attempts struct {
	mu  sync.Mutex
	all []string
}

func (a *attempts) Write(p []byte) (int, error) { return a.TryWrite(p) }
func (a *attempts) TryWrite(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, string(p))
	return len(p), nil
}

// methods returns the methods written by each attempt.
func (a *attempts) methods() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, text := range a.all {
		var names []string
		for line := range strings.Lines(text) {
			_, name, _ := strings.Cut(line, `"method":"`)
			name, _, _ = strings.Cut(name, `"`)
			names = append(names, name)
		}
		out = append(out, strings.Join(names, " "))
	}
	a.all = nil
	return strings.Join(out, " | ")
}

// TestHold starts exchanges that must be written together.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		a := &attempts{}
		c := NewConn(r, a, Options{})
		var wg sync.WaitGroup
		wg.Go(func() { c.Run(t.Context()) })
		var waits []*Waiter
		start := func(method string, hold bool) *Exchange {
			waits = append(waits, NewWaiter())
			x := &Exchange{Method: method, Sink: waits[len(waits)-1], Hold: hold}
			c.Start(x)
			return x
		}
		written := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := a.methods(); got != want {
				t.Errorf("written: %q, want %q", got, want)
			}
		}
		start("a", true)
		start("b", true)
		written("")
		start("c", false)
		written("a b c")
		start("d", true)
		c.Flush()
		written("d")
		c.Flush()
		written("")
		taken := start("e", true)
		start("f", true)
		if id, ok := c.Cancel(taken); !ok || id != 0 {
			t.Errorf("cancelled while held: id %d, %v", id, ok)
		}
		if err := c.Notify("g", nil); err != nil { // a notification is never held
			t.Error(err)
		}
		written("f g")
		start("h", true)
		w.Close()
		wg.Wait()
		written("")
		for i, ran := range []rpc.Ran{rpc.RanMaybe, rpc.RanMaybe, rpc.RanMaybe, rpc.RanMaybe, rpc.RanNo, rpc.RanMaybe, rpc.RanNo} {
			<-waits[i].Done()
			if _, err := waits[i].Result(); rpc.AsError(err).Details().Ran != ran {
				t.Errorf("exchange %d: %v, want ran %s", i, err, ran)
			}
		}
	})
}
