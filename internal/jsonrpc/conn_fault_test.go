package jsonrpc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestRefusedRequestsOfAPeer checks the answers to a peer's own requests: their size is limited for any id and method, so
// that a peer that sends requests and does not read cannot fill the memory with answers.
func TestRefusedRequestsOfAPeer(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	for _, h := range []rpc.Handler{nil, rpc.HandlerFunc(func(context.Context, *rpc.Request) (json.RawMessage, error) {
		return json.RawMessage(`"run"`), nil
	})} {
		for _, tt := range []struct{ name, line, want string }{
			{"a huge id", `{"jsonrpc":"2.0","id":"` + big + `","method":"ping"}`, `"id":null,"error":{"code":-32600`},
			{"an id that is an object", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, `"id":null,"error":{"code":-32600`},
			{"an id that is null", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, `"id":null,"error":{"code":-32600`},
			{"a method that is no string", `{"jsonrpc":"2.0","id":3,"method":7}`, `"id":3,"error":{"code":-32600`},
			{"a huge method", `{"jsonrpc":"2.0","id":3,"method":"` + big + `"}`, `"id":3,`},
		} {
			t.Run(tt.name, func(t *testing.T) {
				answer := make(chan string, 1)
				dial(t, Options{Handler: h}, func(in *bufio.Reader, out io.Writer) {
					io.WriteString(out, tt.line+"\n")
					line, _ := in.ReadString('\n')
					answer <- line
				})
				if got := <-answer; !strings.Contains(got, tt.want) || len(got) > 2000 {
					t.Errorf("answered %d bytes, %.300s, want %s", len(got), got, tt.want)
				}
			})
		}
	}
}

// TestSecondRequestWithOneID checks that a request can be cancelled although its id was received twice.
func TestSecondRequestWithOneID(t *testing.T) {
	started, ended := make(chan string, 2), make(chan string, 2)
	h := rpc.HandlerFunc(func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		started <- r.Method
		if r.Method == "first" {
			<-ctx.Done()
			ended <- r.Method
		}
		return nil, nil
	})
	dial(t, Options{Handler: h}, func(in *bufio.Reader, out io.Writer) {
		io.WriteString(out, `{"jsonrpc":"2.0","id":1,"method":"first"}`+"\n")
		<-started
		io.WriteString(out, `{"jsonrpc":"2.0","id":1,"method":"second"}`+"\n")
		in.ReadString('\n')
		io.WriteString(out, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`+"\n")
		in.ReadString('\n')
	})
	select {
	case <-ended:
	case <-time.After(15 * time.Second):
		t.Error("the first request was not cancelled")
	}
}

// failing is a writer that fails, and a reader that never ends by itself and does not support deadlines.
type failing struct{ io.ReadCloser }

func (failing) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// TestWriteFails checks that a failed write ends the connection and its pending calls, although the reader does not
// support deadlines.
func TestWriteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		defer w.Close()
		f := failing{r}
		c := NewConn(f, f, Options{})
		ended := make(chan error, 1)
		go func() { ended <- c.Run(t.Context()) }()
		if _, err := c.Call(t.Context(), "m", nil); !errors.Is(err, rpc.CodeExited) {
			t.Errorf("Call: %v", err)
		}
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "broken pipe") {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestErrorCodeZero checks that an error is recognised although its code is not a number.
func TestErrorCodeZero(t *testing.T) {
	for _, e := range []string{`{"code":"x","message":"m"}`, `{"code":1.5,"message":"m"}`, `{"code":1e400,"message":"m"}`,
		`{"code":null,"message":"m"}`, `{}`, `[]`, `7`, `{"code":0,"message":"m"}`, `{"Code":3,"Message":"m"}`} {
		r, err := ParseReply([]byte(`{"jsonrpc":"2.0","id":1,"error":` + e + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if r.ErrorCode() == 0 {
			t.Errorf("the code of %s is 0, that of a result", e)
		}
		var out struct {
			Error struct {
				Code    *int    `json:"code"`
				Message *string `json:"message"`
			} `json:"error"`
		}
		if text := r.AppendTo(nil, []byte("7")); json.Unmarshal(text, &out) != nil || out.Error.Code == nil || out.Error.Message == nil {
			t.Errorf("%s is forwarded as %s", e, text)
		}
	}
}

// counting is a Sink that counts its deliveries.
type counting struct {
	mu   sync.Mutex
	n    int
	done chan struct{}
}

func (s *counting) Deliver(*Exchange, Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n++; s.n == 1 {
		close(s.done)
	}
}

// FuzzConn runs a Conn against a child with the fuzzer's output, with calls that are started, cancelled and left: every
// exchange ends exactly once, and no goroutine is left.
func FuzzConn(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"result":1}`+"\n"+`{"id":2,"error":3}`+"\n"), []byte{0, 1, 2, 3}, false)
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n"+`{"id":"x","method":"m"}`+"\n"+`{"id":1,"result":`), []byte{9, 200, 7}, true)
	f.Add([]byte(`{"id":1,"result":1}{"id":1,"result":1}`+"\n\n"+`{"id":1}`+"\n"+`{"id":"1","result":2}`), []byte{5, 5, 5, 5, 5}, true)
	f.Add([]byte(`{"method":"notifications/cancelled","params":{"requestId":7}}`+"\n"+`{"id":7,"method":"x"}`+"\n"), []byte{1}, true)
	f.Fuzz(func(t *testing.T, output, ops []byte, handles bool) {
		if len(ops) > 64 || len(output) > 64<<10 {
			return
		}
		others := goleak.IgnoreCurrent()
		here, there := net.Pipe()
		opt := Options{MaxLine: 1 << 10}
		if handles {
			opt.Handler = rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) { return r.Params, nil })
			opt.MaxHandlers = 2
		}
		c := NewConn(here, here, opt)
		var wg sync.WaitGroup
		wg.Go(func() { c.Run(context.Background()) })        // ends when there is closed
		wg.Go(func() { io.Copy(io.Discard, there) })         // ends when here is closed
		wg.Go(func() { there.Write(output); there.Close() }) // ends with the output
		var sinks []*counting
		for _, op := range ops {
			s := &counting{done: make(chan struct{})}
			sinks = append(sinks, s)
			x := &Exchange{Method: "m", Params: []byte(`{"n":1}`), Sink: s}
			if op&1 != 0 {
				x.Deadline = time.Now().Add(time.Duration(op) * time.Microsecond)
			}
			wg.Go(func() {
				c.Start(x)
				if op&2 != 0 {
					c.Cancel(x)
				}
				if op&4 != 0 {
					c.Notify("n", nil)
				}
			})
		}
		for i, s := range sinks {
			select {
			case <-s.done:
			case <-time.After(10 * time.Second):
				t.Fatalf("exchange %d (%d) never ends", i, ops[i])
			}
		}
		wait := make(chan struct{})
		go func() { wg.Wait(); here.Close(); close(wait) }()
		select {
		case <-wait:
		case <-time.After(10 * time.Second):
			t.Fatal("Run does not end")
		}
		for i, s := range sinks {
			s.mu.Lock()
			if s.n != 1 {
				t.Errorf("exchange %d was delivered %d times", i, s.n)
			}
			s.mu.Unlock()
		}
		leaks.None(t, others)
	})
}

// TestServeEndsWithItsContext uses a reader that cannot be interrupted, like standard input.
func TestServeEndsWithItsContext(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		served <- Serve(ctx, struct{ io.Reader }{r}, io.Discard, rpc.HandlerFunc(func(ctx context.Context, _ *rpc.Request) (json.RawMessage, error) {
			close(started)
			<-ctx.Done()
			return nil, ctx.Err()
		}))
	}()
	io.WriteString(w, `{"jsonrpc":"2.0","id":1,"method":"m"}`+"\n")
	<-started
	cancel()
	select {
	case err := <-served:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
	case <-time.After(15 * time.Second):
		t.Error("Serve did not return after its context ended")
	}
}
