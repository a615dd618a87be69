package jsonrpc

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// slowTry is a writer whose attempts block until the test releases them.
type slowTry struct {
	trying, let chan struct{}

	mu   sync.Mutex
	text strings.Builder
}

func (w *slowTry) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *slowTry) TryWrite(p []byte) (int, error) {
	w.trying <- struct{}{}
	<-w.let
	return w.Write(p)
}

// TestAnswerDuringTryWrite ends a connection during an attempt to write, while a handler's answer is queued: Run returns
// after the answer is written.
func TestAnswerDuringTryWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, in := io.Pipe()
		w := &slowTry{trying: make(chan struct{}), let: make(chan struct{})}
		c := NewConn(r, w, Options{Handler: rpc.HandlerFunc(func(context.Context, *rpc.Request) (json.RawMessage, error) {
			return json.RawMessage(`"answer"`), nil
		})})
		var wg sync.WaitGroup
		wg.Go(func() { c.Run(t.Context()) })
		wg.Go(func() { c.Notify("note", nil) })
		<-w.trying
		io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"m"}`+"\n")
		synctest.Wait() // the answer is in the queue
		in.Close()
		synctest.Wait() // and Run at its end
		close(w.let)
		wg.Wait()
		if got := w.text.String(); !strings.Contains(got, `"note"`) || !strings.Contains(got, `"answer"`) {
			t.Errorf("written: %s", got)
		}
	})
}
