// Clock is an extension in Go that uses nothing but the standard library: JSON-RPC, a message a line, on stdin
// and stdout (docs/protocol.md, "A child on stdin and stdout"). Calls run side by side, so that a long sleep
// delays nobody, and a call that is cancelled ends at once.
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
	_ "time/tzdata" // zone names work on machines without a zone database, too
)

const handshake = `{"server_version":"1.0.0","hooks":[],"tools":[
{"name":"now","description":"The current time.","input_schema":{"type":"object","properties":{
"tz":{"type":"string","description":"an IANA zone such as Europe/Rome; default UTC"}}}},
{"name":"sleep","description":"Answers after a while.","input_schema":{"type":"object","properties":{
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

// serve answers until in ends or says shutdown; then it cancels what is in flight and waits for it.
func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()

	var inFlight sync.Map  // raw id → context.CancelFunc
	var writing sync.Mutex // one line at a time
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
			continue // the empty line that announces the end, or noise
		}
		switch {
		case m.Method == "shutdown":
			return nil
		case m.Method == "notifications/cancelled":
			var p struct {
				RequestID json.RawMessage `json:"requestId"`
			}
			_ = json.Unmarshal(m.Params, &p) // a cancel that names no call cancels none
			if stop, ok := inFlight.Load(string(p.RequestID)); ok {
				stop.(context.CancelFunc)()
			}
		case m.Method != "" && m.ID != nil:
			callCtx, stop := context.WithCancel(ctx)
			inFlight.Store(string(m.ID), stop)
			calls.Go(func() { // one call's; serve waits for it
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
			return nil, &rpcError{-32602, "want an object: tz a string, ms an integer"}
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
			return nil, &rpcError{-32602, "sleep wants ms, milliseconds from 0 to 3600000"}
		}
		return sleep(ctx, time.Duration(*args.MS)*time.Millisecond)
	}
	return nil, &rpcError{-32601, fmt.Sprintf("clock has no method %q", method)}
}

func now(name string) (any, *rpcError) {
	zone, err := time.LoadLocation(name)
	if err != nil || zone == time.Local { // "Local" means this host's, which says nothing to the caller
		return nil, &rpcError{-32602, fmt.Sprintf("no time zone is called %q: want a name such as Europe/Rome", name)}
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
