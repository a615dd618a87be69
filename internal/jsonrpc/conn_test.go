package jsonrpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/rawio"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// dial connects a Conn to a scripted peer.
func dial(t testing.TB, opt Options, peer func(in *bufio.Reader, out io.Writer)) *Conn {
	t.Helper()
	here, there := net.Pipe()
	c := NewConn(here, here, opt)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })                                         // ends with ctx, or with the peer
	wg.Go(func() { peer(bufio.NewReader(there), there); there.Close() }) // ends when the pipe does
	t.Cleanup(func() { cancel(); here.Close(); there.Close(); wg.Wait() })
	return c
}

func TestCallAgainstOddChildren(t *testing.T) {
	const ok = `{"jsonrpc":"2.0","id":ID,"result":{"ok":true}}` + "\n"
	for _, tt := range []struct {
		name, text string
		want       string   // the result
		code       rpc.Code // or the error's code
		message    string   // and a part of its message
		maxLine    int
	}{
		{name: "plain", text: ok, want: `{"ok":true}`},
		{name: "numbers", text: `{"id":ID,"jsonrpc":"2.0","result":[9007199254740993,1e400,1.0,"<&>\u00e9"]}` + "\n", want: `[9007199254740993,1e400,1.0,"<&>\u00e9"]`},
		{name: "banner first", text: "Listening on stdio\n\n\r\n" + ok, want: `{"ok":true}`},
		{name: "crlf", text: strings.ReplaceAll(ok, "\n", "\r\n"), want: `{"ok":true}`},
		{name: "string id", text: `{"jsonrpc":"2.0","id":"ID","result":1}` + "\n", want: `1`},
		{name: "float id", text: `{"jsonrpc":"2.0","id":ID.0,"result":1}` + "\n", want: `1`},
		{name: "unknown id first", text: `{"jsonrpc":"2.0","id":99,"result":0}` + "\n" + ok, want: `{"ok":true}`},
		{name: "no version", text: `{"id":ID,"result":1}` + "\n", want: `1`},
		{name: "result null", text: `{"jsonrpc":"2.0","id":ID,"result":null}` + "\n", want: `null`},
		{name: "invalid UTF-8", text: "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":\"a\xffb\"}\n", want: "\"a\uFFFDb\""},
		{name: "error", text: `{"jsonrpc":"2.0","id":ID,"error":{"code":-5,"message":"no","data":1.0}}` + "\n", code: -5, message: "no"},
		{name: "error is a string", text: `{"jsonrpc":"2.0","id":ID,"error":"boom"}` + "\n", code: rpc.CodeInternal, message: "boom"},
		{name: "error without message", text: `{"jsonrpc":"2.0","id":ID,"error":{"code":7}}` + "\n", code: 7, message: "malformed error"},
		{name: "error null and result", text: `{"jsonrpc":"2.0","id":ID,"error":null,"result":1}` + "\n", want: `1`},
		{name: "both", text: `{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":"x"},"result":1}` + "\n", want: `1`},
		{name: "neither", text: `{"jsonrpc":"2.0","id":ID}` + "\n", code: rpc.CodeInternal, message: "neither"},
		{name: "neither, the error null", text: `{"jsonrpc":"2.0","id":ID,"error":null}` + "\n", code: rpc.CodeInternal, message: "neither"},
		{name: "neither, of some version", text: `{"id":ID,"jsonrpc":2}` + "\n", code: rpc.CodeInternal, message: "neither"},
		{name: "broken JSON", text: `{"jsonrpc":"2.0","id":ID,"result":NaN}` + "\n", code: rpc.CodeInternal, message: "not valid JSON"},
		{name: "too long, id first", text: `{"jsonrpc":"2.0","id":ID,"result":"` + strings.Repeat("x", 9000) + "\"}\n", code: rpc.CodeTooLarge, message: "9", maxLine: 8000},
		{name: "too long, id last", text: `{"jsonrpc":"2.0","result":{"id":77,"t":"\"id\":5,` + strings.Repeat("x", 90000) + `"},"id":ID}` + "\n", code: rpc.CodeTooLarge, message: "90", maxLine: 8000},
		{name: "byte order mark", text: "\ufeff" + ok, want: `{"ok":true}`},
		{name: "byte order mark before a banner", text: "\ufeffready\r\n" + ok, want: `{"ok":true}`},
		{name: "half an answer and the end", text: `{"jsonrpc":"2.0","id":ID,"result":{"a":`, code: rpc.CodeExited, message: "ended before the answer"},
		{name: "half an answer, not UTF-8, and the end", text: `{"jsonrpc":"2.0","id":ID,"result":{"a":"` + "\xc3", code: rpc.CodeExited, message: "ended before the answer"},
		{name: "zeros before the id", text: `{"jsonrpc":"2.0","id":"00ID","result":0}` + "\n" + ok, want: `{"ok":true}`},
		{name: "hexadecimal id", text: `{"jsonrpc":"2.0","id":"0xIDp0","result":0}` + "\n" + ok, want: `{"ok":true}`},
		{name: "no newline at the end", text: strings.TrimSuffix(ok, "\n"), want: `{"ok":true}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := dial(t, Options{MaxLine: tt.maxLine}, func(in *bufio.Reader, out io.Writer) {
				line, _ := in.ReadBytes('\n')
				e, _ := Scan(line)
				io.WriteString(out, strings.ReplaceAll(tt.text, "ID", string(e.ID)))
			})
			got, err := c.Call(t.Context(), "m", nil)
			if tt.code != 0 {
				if !errors.Is(err, tt.code) || !strings.Contains(err.Error(), tt.message) {
					t.Fatalf("error %v, want code %d with %q", err, tt.code, tt.message)
				}
				return
			}
			if err != nil || string(got) != tt.want {
				t.Fatalf("= %s, %v; want %s", got, err, tt.want)
			}
		})
	}
}

func TestRequestLine(t *testing.T) {
	got := make(chan string, 1)
	c := dial(t, Options{}, func(in *bufio.Reader, out io.Writer) {
		line, _ := in.ReadString('\n')
		got <- line
	})
	_, err := c.Call(t.Context(), `odd"name`, json.RawMessage("{\n \"a\":\r\n 1.0 }"))
	if !errors.Is(err, rpc.CodeExited) {
		t.Errorf("error %v, want %v", err, rpc.CodeExited)
	}
	if want := `{"jsonrpc":"2.0","id":1,"method":"odd\"name","params":{  "a":   1.0 }}` + "\n"; <-got != want {
		t.Errorf("line is not %q", want)
	}
}

func TestOutOfOrder(t *testing.T) {
	const n = 256
	c := dial(t, Options{}, func(in *bufio.Reader, out io.Writer) {
		var answers []string
		for range n {
			line, err := in.ReadBytes('\n')
			if err != nil {
				return
			}
			e, _ := Scan(line)
			answers = append(answers, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", e.ID, e.Params))
		}
		rand.Shuffle(n, func(i, j int) { answers[i], answers[j] = answers[j], answers[i] })
		io.WriteString(out, strings.Join(answers, ""))
	})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			want := fmt.Sprint(i)
			if got, err := c.Call(t.Context(), "m", json.RawMessage(want)); err != nil || string(got) != want {
				t.Errorf("call %d = %s, %v", i, got, err)
			}
		})
	}
	wg.Wait()
}

func TestTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		c := NewConn(here, here, Options{})
		go c.Run(t.Context()) // ends with the pipe
		defer here.Close()
		defer there.Close()

		start := time.Now()
		call := func(d time.Duration) (ran rpc.Ran, took time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			_, err := c.Call(ctx, "m", nil)
			if !errors.Is(err, rpc.CodeTimeout) {
				t.Errorf("error %v, want a time-out", err)
				return "", 0
			}
			return rpc.AsError(err).Details().Ran, time.Since(start)
		}
		var wg sync.WaitGroup
		wg.Go(func() { // the peer never reads: this call is blocked while it is written
			if ran, took := call(2 * time.Second); ran != rpc.RanMaybe || took != 2*time.Second {
				t.Errorf("written: ran %q after %v", ran, took)
			}
		})
		synctest.Wait()
		wg.Go(func() { // this call is still queued
			if ran, took := call(time.Second); ran != rpc.RanNo || took != time.Second {
				t.Errorf("queued: ran %q after %v", ran, took)
			}
		})
		wg.Wait()
		go io.Copy(io.Discard, there) // ends with the pipe
		ran, took := call(time.Second)
		if ran != rpc.RanMaybe || took != 3*time.Second {
			t.Errorf("read but unanswered: ran %q after %v", ran, took)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.pending.of) != 0 {
			t.Errorf("%d calls are still pending", len(c.pending.of))
		}
	})
}

// TestTimeoutIsCancelled checks that a peer need not finish a request that has timed out.
func TestTimeoutIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		c := NewConn(here, here, Options{})
		go c.Run(t.Context()) // ends with the pipe
		defer here.Close()
		defer there.Close()
		lines := make(chan string, 10)
		go func() { // ends with the pipe
			for s := bufio.NewScanner(there); s.Scan(); {
				lines <- s.Text()
			}
		}()
		for n, method := range []string{"initialize", "m"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := c.Call(ctx, method, nil)
			cancel()
			if !errors.Is(err, rpc.CodeTimeout) {
				t.Error(err)
			}
			if got, want := <-lines, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q}`, n+1, method); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		if got, want := <-lines, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

func TestCancelBeforeWriting(t *testing.T) {
	var seen bytes.Buffer
	writing, block := make(chan struct{}, 10), make(chan struct{})
	pr, pw := io.Pipe()
	c := NewConn(pr, writerFunc(func(p []byte) (int, error) { writing <- struct{}{}; <-block; return seen.Write(p) }), Options{})
	done := make(chan struct{})
	go func() { c.Run(t.Context()); close(done) }() // ends when pw is closed

	sink := make(sinkChan, 3)
	first, second := &Exchange{Method: "first", Sink: sink}, &Exchange{Method: "second", Sink: sink}
	c.Start(first)
	<-writing // what follows is queued
	c.Start(second)
	if id, ok := c.Cancel(second); !ok || id != 0 {
		t.Errorf("Cancel = %d, %v, want 0, true", id, ok)
	}
	if r := <-sink; !errors.Is(r.Err, rpc.CodeCancelled) || r.Err.Details().Ran != rpc.RanNo {
		t.Errorf("second ended with %v", r.Err)
	}
	if _, ok := c.Cancel(second); ok {
		t.Error("cancelled twice")
	}
	close(block)
	pw.Close()
	<-done
	if r := <-sink; !errors.Is(r.Err, rpc.CodeExited) {
		t.Errorf("first ended with %v", r.Err)
	}
	c.Start(&Exchange{Method: "late", Sink: sink})
	if r := <-sink; !errors.Is(r.Err, rpc.CodeExited) || r.Err.Details().Ran != rpc.RanNo {
		t.Errorf("late ended with %v", r.Err)
	}
	if strings.Contains(seen.String(), "second") {
		t.Errorf("the cancelled request was written: %s", seen.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type sinkChan chan Reply

func (s sinkChan) Deliver(_ *Exchange, r Reply) { s <- r }

func TestPeerRequests(t *testing.T) {
	got := make(chan string, 10)
	notes := make(chan string, 10)
	dial(t, Options{OnNotification: func(m string, p []byte) { notes <- m + string(p) }}, func(in *bufio.Reader, out io.Writer) {
		for _, m := range []string{
			`{"jsonrpc":"2.0","id":"p","method":"ping"}`,
			`{"jsonrpc":"2.0","id":5,"method":"roots/list","params":{}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"n":1.0}}`,
		} {
			io.WriteString(out, m+"\n")
		}
		for range 2 {
			line, _ := in.ReadString('\n')
			got <- line
		}
	})
	if l := <-got; l != `{"jsonrpc":"2.0","id":"p","result":{}}`+"\n" {
		t.Errorf("ping: %s", l)
	}
	if l := <-got; !strings.HasPrefix(l, `{"jsonrpc":"2.0","id":5,"error":{"code":-32601,`) {
		t.Errorf("roots/list: %s", l)
	}
	if n := <-notes; n != `notifications/progress{"n":1.0}` {
		t.Errorf("notification %s", n)
	}
}

func TestServe(t *testing.T) {
	cancelled := make(chan struct{})
	h := rpc.HandlerFunc(func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		switch r.Method {
		case "echo":
			return r.Params, r.Send("notifications/progress", json.RawMessage(`{"p":1}`))
		case "panic":
			panic("secret")
		case "wait":
			<-ctx.Done()
			close(cancelled)
			return nil, ctx.Err()
		}
		return nil, rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "no %s", r.Method)
	})
	here, there := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- Serve(t.Context(), there, there, h); there.Close() }() // ends on the shutdown below
	progress := make(chan string, 1)
	c := NewConn(here, here, Options{OnNotification: func(m string, p []byte) { progress <- m + string(p) }})
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(t.Context()) }) // ends when there is closed

	if got, err := c.Call(t.Context(), "echo", json.RawMessage(`[1e400]`)); err != nil || string(got) != `[1e400]` {
		t.Errorf("echo = %s, %v", got, err)
	}
	if p := <-progress; p != `notifications/progress{"p":1}` {
		t.Errorf("progress %s", p)
	}
	if _, err := c.Call(t.Context(), "panic", nil); !errors.Is(err, rpc.CodeInternal) || strings.Contains(err.Error(), "secret") {
		t.Errorf("panic: %v", err)
	}
	if _, err := c.Call(t.Context(), "nope", nil); !errors.Is(err, rpc.CodeMethodNotFound) {
		t.Errorf("nope: %v", err)
	}
	sink := make(sinkChan, 1)
	x := &Exchange{Method: "wait", Sink: sink}
	c.Start(x)
	id, _ := c.Cancel(x)
	if id == 0 { // the write was handed over: a call whose write has finished has an id
		c.Call(t.Context(), "echo", nil)
		<-progress
	} else {
		c.Notify("notifications/cancelled", json.RawMessage(fmt.Sprintf(`{"requestId":%d}`, id)))
		<-cancelled
	}
	c.Notify("shutdown", nil)
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	wg.Wait()
}

// TestMany uses a Conn over a real pipe with a non-blocking writer from many goroutines; the race detector and the echoed
// payloads would reveal buffers that are shared by mistake.
func TestMany(t *testing.T) {
	c := pipePair(t, echo)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for j := range 200 {
				want := fmt.Sprintf(`"%d/%d%s"`, i, j, strings.Repeat("x", rand.IntN(3000)))
				got, err := c.Call(t.Context(), "echo", json.RawMessage(want))
				if err != nil || string(got) != want {
					t.Errorf("echo %.20s = %.20s, %v", want, got, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if s := c.Stats(); s != (Stats{}) {
		t.Errorf("dropped something: %+v", s)
	}
}

// pipePair returns a Conn to a peer over two OS pipes.
func pipePair(t testing.TB, peer func(in io.Reader, out io.Writer)) *Conn {
	t.Helper()
	inR, inW, outR, outW := twoPipes(t)
	c := NewConn(outR, newTryWriter(t, inW), Options{})
	var wg sync.WaitGroup
	wg.Go(func() { peer(inR, outW); outW.Close() })             // ends when inW is closed
	wg.Go(func() { c.Run(context.WithoutCancel(t.Context())) }) // ends when the peer does
	t.Cleanup(func() { inW.Close(); wg.Wait(); outR.Close(); inR.Close() })
	return c
}

// tryWriter offers TryWrite over a pipe, as a child's standard input does.
type tryWriter struct {
	*os.File
	raw *rawio.File
}

func newTryWriter(t testing.TB, f *os.File) tryWriter {
	t.Helper()
	raw, err := rawio.New(f)
	if err != nil {
		t.Fatal(err)
	}
	return tryWriter{f, raw}
}

func (w tryWriter) TryWrite(p []byte) (n int, err error) { return w.raw.TryWrite(p) }

func twoPipes(t testing.TB) (inR, inW, outR, outW *os.File) {
	t.Helper()
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err = os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return inR, inW, outR, outW
}

// echo answers every request with its params.
func echo(r io.Reader, w io.Writer) {
	in, out := bufio.NewReaderSize(r, 64<<10), bufio.NewWriterSize(w, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		e, _ := Scan(line)
		out.Write(append(AppendResult(nil, e.ID, e.Params), '\n'))
		if in.Buffered() == 0 {
			out.Flush()
		}
	}
}

func BenchmarkCall(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			c := pipePair(b, echo)
			params := json.RawMessage(`"` + strings.Repeat("x", 256) + `"`)
			b.ReportAllocs()
			b.SetParallelism(max(1, callers/2))
			if callers == 1 {
				for b.Loop() {
					if _, err := c.Call(b.Context(), "echo", params); err != nil {
						b.Fatal(err)
					}
				}
				return
			}
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := c.Call(b.Context(), "echo", params); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
