package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/extmesh/extmesh/internal/natsd"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// play runs this program as one of the others on the stage.
func play(role string) error {
	switch role {
	case "natsd":
		return runServer()
	case "micro":
		return runMicro()
	case "json":
		return runChild(answerJSON)
	case "echo":
		return runChild(answerEcho)
	case "slow":
		return runSlow()
	}
	return fmt.Errorf("no such role: %s", role)
}

// runServer is a NATS server that says its URL on standard output.
func runServer() error {
	dir, err := os.MkdirTemp("", "extmesh-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := natsd.Start(natsd.Config{Port: -1, StoreDir: dir})
	if err != nil {
		return err
	}
	fmt.Println(s.ClientURL())
	io.Copy(io.Discard, os.Stdin) // until the parent goes
	s.Shutdown()
	return nil
}

// runMicro is the bare micro service: the least that a NATS service can do. BENCH_SERVICES says how many.
func runMicro() error {
	nc, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		return err
	}
	n, _ := strconv.Atoi(os.Getenv("BENCH_SERVICES")) // not set: one
	for i := range max(1, n) {
		subject := "bare.echo"
		if i > 0 {
			subject = fmt.Sprintf("bare.echo%d", i)
		}
		svc, err := micro.AddService(nc, micro.Config{Name: "bare", Version: "1.0.0"})
		if err != nil {
			return err
		}
		err = svc.AddEndpoint("echo", micro.HandlerFunc(func(r micro.Request) { r.Respond(r.Data()) }), micro.WithEndpointSubject(subject))
		if err != nil {
			return err
		}
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	nc.Close()
	return nil
}

// runChild is a child that answers each line as fast as Go can.
func runChild(answer func(dst, line []byte) []byte) error {
	in, out := bufio.NewReaderSize(os.Stdin, 64<<10), bufio.NewWriterSize(os.Stdout, 64<<10)
	var buf, long []byte
	for {
		line, err := in.ReadSlice('\n')
		if err == bufio.ErrBufferFull {
			long = append(long[:0], line...)
			for err == bufio.ErrBufferFull {
				line, err = in.ReadSlice('\n')
				long = append(long, line...)
			}
			line = long
		}
		if err != nil {
			return nil
		}
		buf = answer(buf[:0], line)
		if len(buf) > 0 {
			out.Write(append(buf, '\n'))
		}
		if in.Buffered() == 0 {
			out.Flush()
		}
	}
}

// hello lists the tools, with an ordinary schema, so that checking arguments costs what it costs.
const hello = `{"server_version":"1","tools":[{"name":"echo","input_schema":{"type":"object",` +
	`"properties":{"text":{"type":"string"}},"required":["text"]}},{"name":"big"}],"hooks":[]}`

// answerJSON parses the whole message, as an ordinary child does.
func answerJSON(dst, line []byte) []byte {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params map[string]any  `json:"params"`
	}
	if json.Unmarshal(line, &m) != nil || m.ID == nil {
		return dst
	}
	if m.Method == "initialize" {
		return rpc.AppendResult(dst, m.ID, []byte(hello))
	}
	result, err := json.Marshal(m.Params)
	if err != nil {
		return dst
	}
	return rpc.AppendResult(dst, m.ID, result)
}

// answerEcho only splices: the fastest child there can be. Its tool big answers with as many bytes as it is told.
func answerEcho(dst, line []byte) []byte {
	e, err := rpc.Scan(line)
	if err != nil || e.ID == nil {
		return dst
	}
	switch e.MethodName() {
	case "initialize":
		return rpc.AppendResult(dst, e.ID, []byte(hello))
	case "tools/big":
		var p struct{ Bytes int }
		if json.Unmarshal(e.Params, &p) != nil {
			return dst
		}
		return rpc.AppendResult(dst, e.ID, []byte(`"`+strings.Repeat("x", max(0, p.Bytes-2))+`"`))
	}
	return rpc.AppendResult(dst, e.ID, e.Params)
}

// slowTakes is how long the slow child takes for a call.
const slowTakes = 5 * time.Second

// runSlow is a child that takes its time, with as many calls side by side as come.
func runSlow() error {
	var mu sync.Mutex // guards standard output
	say := func(id, result []byte) {
		mu.Lock()
		defer mu.Unlock()
		os.Stdout.Write(append(rpc.AppendResult(nil, id, result), '\n'))
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		e, err := rpc.Scan(lines.Bytes())
		if err != nil || e.ID == nil {
			continue
		}
		id := append([]byte(nil), e.ID...)
		switch e.MethodName() {
		case "initialize":
			say(id, []byte(hello))
		case "ping":
			say(id, []byte("{}"))
		default:
			time.AfterFunc(slowTakes, func() { say(id, []byte("{}")) })
		}
	}
	return lines.Err()
}
