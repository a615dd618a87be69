package door

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/mcp"
)

// benchBed is a mesh with one extension that answers at once.
func benchBed(b *testing.B) (*bed, *Door) {
	b.Helper()
	m := newBed(b)
	m.ready("x", "mcp", tool("x", "echo"))
	answer := []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"hello"}]}}`)
	if _, err := m.connect().Subscribe("ext.x.rpc", func(q *nats.Msg) { _ = q.Respond(answer) }); err != nil {
		b.Fatal(err)
	}
	d := m.door(Options{})
	return m, d
}

// BenchmarkCall measures a call by mesh.Client, and the same call through the server on a pipe and over HTTP: one at a
// time, which shows what the server adds to the latency, and 64 at once. The numbers include the client, the NATS server
// and the extension, which all run in this process.
func BenchmarkCall(b *testing.B) {
	_, d := benchBed(b)
	args := json.RawMessage(`{"text":"hello","n":1}`)
	client := d.mesh.Load().client
	for _, calls := range []int{1, 64} {
		b.Run(fmt.Sprintf("client/%d", calls), func(b *testing.B) {
			inParallel(b, calls, func() func() error {
				return func() error {
					_, err := client.Call(context.Background(), "ext_x_echo", args)
					return err
				}
			})
		})
		b.Run(fmt.Sprintf("stdio/%d", calls), func(b *testing.B) { benchPipe(b, d, calls) })
		b.Run(fmt.Sprintf("http/%d", calls), func(b *testing.B) { benchHTTP(b, d, calls) })
	}
}

// inParallel makes b.N calls from several goroutines, each with a function of its own.
func inParallel(b *testing.B, callers int, newCall func() func() error) {
	work := make(chan struct{}, b.N)
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	var all []func() error
	for range callers {
		all = append(all, newCall())
	}
	var wg sync.WaitGroup
	b.ResetTimer()
	for _, call := range all {
		wg.Go(func() { // ends when the work is done
			for range work {
				if err := call(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer() // the end of a server is not measured
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

// benchPipe keeps a number of calls in flight on one pipe of the operating system.
func benchPipe(b *testing.B, d *Door, inFlight int) {
	inR, inW, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // ends with the input
		defer close(ended)
		_ = d.ServeStdio(context.Background(), inR, outW)
		outW.Close()
	}()
	defer func() { inW.Close(); <-ended; inR.Close(); outR.Close() }()
	send := func(id int) {
		line := append(strconv.AppendInt([]byte(`{"jsonrpc":"2.0","id":`), int64(id), 10), `,"method":"tools/call","params":{"name":"ext_x_echo","arguments":{"text":"hello","n":1}}}`+"\n"...)
		if _, err := inW.Write(line); err != nil {
			b.Error(err)
		}
	}
	out := bufio.NewReader(outR)
	b.ResetTimer()
	for id := range min(inFlight, b.N) {
		send(id)
	}
	for n := range b.N {
		line, err := out.ReadSlice('\n')
		if err != nil || !bytes.Contains(line, []byte(`"hello"`)) {
			b.Fatalf("%v: %s", err, line)
		}
		if next := n + inFlight; next < b.N {
			send(next)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

// benchHTTP makes modern requests on kept connections.
func benchHTTP(b *testing.B, d *Door, callers int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		_ = d.ServeHTTP(ctx, l, HTTPOptions{Drain: time.Second})
	}()
	defer func() { cancel(); <-ended }()
	body := callMessage("1", "ext_x_echo", `,"arguments":{"text":"hello","n":1},`+modernMeta)
	request := fmt.Appendf(nil, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"+
		"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: ext_x_echo\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	inParallel(b, callers, func() func() error {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { conn.Close() })
		r := bufio.NewReader(conn)
		return func() error {
			if _, err := conn.Write(request); err != nil {
				return err
			}
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			if err == nil && !bytes.Contains(text, []byte(`"hello"`)) {
				err = fmt.Errorf("%d: %s", res.StatusCode, text)
			}
			return err
		}
	})
}

// BenchmarkList measures a list of tools, and what a change of one extension costs.
func BenchmarkList(b *testing.B) {
	for _, n := range []int{200, 10_000} {
		all := generated(n)
		o := ViewOptions{Tools: ToolsAll}.withDefaults()
		cache := &lists{}
		cache.tools.update(all, slog.New(slog.DiscardHandler))
		v, _ := buildView(o, &view{}, all, cache, time.Unix(1000, 0))
		d, err := New(Options{View: o})
		if err != nil {
			b.Fatal(err)
		}
		d.view.now.Store(v)
		c := d.newClient(d.view, "")
		b.Run(fmt.Sprintf("list/%d", n), func(b *testing.B) {
			for b.Loop() {
				q := &request{method: mcp.MethodListTools, id: []byte("1")}
				for next := ""; ; {
					q.params.Cursor = nil
					if next != "" {
						q.params.Cursor = mcp.Quote(next)
					}
					result, e := c.listTools(q)
					if e != nil {
						b.Fatal(e)
					}
					_, cursor, more := bytes.Cut(result[max(0, len(result)-200):], []byte(`"nextCursor":"`))
					if !more {
						break
					}
					next = string(bytes.TrimSuffix(cursor, []byte(`"}`)))
				}
			}
		})
		b.Run(fmt.Sprintf("change/%d", n), func(b *testing.B) {
			for b.Loop() {
				spec := *all[0].Spec
				all[0].Spec = &spec
				cache.tools.update(all, slog.New(slog.DiscardHandler))
				buildView(o, v, all, cache, time.Unix(1000, 0))
			}
		})
		b.Run(fmt.Sprintf("search/%d", n), func(b *testing.B) {
			v.find("warm up", "", 1)
			for b.Loop() {
				if hits, _ := v.find("export the invoices of a customer", "", 10); len(hits) == 0 {
					b.Fatal("nothing found")
				}
			}
		})
	}
}
