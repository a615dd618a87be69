// Clock is an extension in Go that uses only the standard library. It reads JSON-RPC requests from stdin and writes the
// responses to stdout, one message per line (docs/protocol.md, "A child on stdin and stdout"). Calls run concurrently,
// so a long sleep delays no other call, and a cancelled call returns immediately.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"
	_ "time/tzdata" // zone names also work on machines without a zone database
)

const handshake = `{"server_version":"1.0.0","hooks":[],"tools":[
{"name":"now","description":"The current time.","input_schema":{"type":"object","properties":{
"tz":{"type":"string","description":"an IANA zone such as Europe/Rome; default UTC"}}}},
{"name":"sleep","description":"Returns after a delay.","input_schema":{"type":"object","properties":{
"ms":{"type":"integer","minimum":0,"description":"milliseconds"}},"required":["ms"]}}]}`

type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
}

type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func main() {
	if err := serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		log.Fatalf("clock: %v", err)
	}
}

// serve handles requests until in ends or shutdown arrives; then it cancels the running calls and waits for them.
func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()

	var inFlight sync.Map  // raw id → context.CancelFunc
	var writing sync.Mutex // one response at a time
	answer := func(m message) {
		writing.Lock()
		defer writing.Unlock()
		if err := json.NewEncoder(out).Encode(m); err != nil {
			log.Printf("clock: answering %s: %v", m.ID, err)
		}
	}

	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var m message
		if json.Unmarshal(lines.Bytes(), &m) != nil {
			continue // the empty line before the end of stdin, or not JSON
		}
		switch {
		case m.Method == "shutdown":
			return nil
		case m.Method == "notifications/cancelled":
			var p struct {
				RequestID json.RawMessage `json:"requestId"`
			}
			_ = json.Unmarshal(m.Params, &p) // a notification without a request id cancels nothing
			if stop, ok := inFlight.Load(string(p.RequestID)); ok {
				stop.(context.CancelFunc)()
			}
		case m.Method != "" && m.ID != nil:
			callCtx, stop := context.WithCancel(ctx)
			inFlight.Store(string(m.ID), stop)
			calls.Go(func() { // ends when the call returns; serve waits for it
				defer stop()
				defer inFlight.Delete(string(m.ID))
				result, err := handle(callCtx, m.Method, m.Params)
				answer(message{JSONRPC: "2.0", ID: m.ID, Result: result, Error: err})
			})
		}
	}
	return lines.Err()
}

func handle(ctx context.Context, method string, params json.RawMessage) (any, *rpcError) {
	var args struct {
		TZ string `json:"tz"`
		MS *int64 `json:"ms"`
	}
	if len(params) > 0 {
		if json.Unmarshal(params, &args) != nil {
			return nil, &rpcError{-32602, "the arguments must be an object: tz a string, ms an integer"}
		}
	}
	switch method {
	case "initialize":
		return json.RawMessage(handshake), nil
	case "ping":
		return struct{}{}, nil
	case "tools/now":
		return now(args.TZ)
	case "tools/sleep":
		if args.MS == nil || *args.MS < 0 || *args.MS > time.Hour.Milliseconds() {
			return nil, &rpcError{-32602, "sleep requires ms, an integer from 0 to 3600000"}
		}
		return sleep(ctx, time.Duration(*args.MS)*time.Millisecond)
	}
	return nil, &rpcError{-32601, fmt.Sprintf("clock has no method %q", method)}
}

func now(name string) (any, *rpcError) {
	zone, err := time.LoadLocation(name)
	if err != nil || zone == time.Local { // "Local" is the zone of this host, not the caller's
		return nil, &rpcError{-32602, fmt.Sprintf("unknown time zone %q: want a name such as Europe/Rome", name)}
	}
	t := time.Now().In(zone)
	return map[string]any{"time": t.Format(time.RFC3339Nano), "tz": zone.String(), "unix_ms": t.UnixMilli()}, nil
}

func sleep(ctx context.Context, d time.Duration) (any, *rpcError) {
	select {
	case <-ctx.Done():
		return nil, &rpcError{-32007, "cancelled"}
	case <-time.After(d):
		return map[string]int64{"slept_ms": d.Milliseconds()}, nil
	}
}
