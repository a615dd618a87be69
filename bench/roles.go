package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
	"github.com/extmesh/extmesh/pkg/rpc/stdio"
)

// roleVar is the environment variable that makes this program one of the other processes of a stage.
const roleVar = "BENCH_ROLE"

// play is main of such a process. It ends with a signal or with its standard input, as children of bridges do.
func play(role string) {
	ctx := context.Background()
	if slices.Contains([]string{"natsd", "micro", "native"}, role) {
		go func() { // ends with the process
			io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
	}
	switch role {
	case "natsd":
		s := must(natsd.NewServer(must(natsd.ProcessConfigFile(os.Getenv("NATS_CONFIG")))))
		s.Start()
		s.WaitForShutdown()
	case "micro":
		runMicro(ctx)
	case "native": // an extension that is its own service on NATS
		nc := must(mesh.Connect(os.Getenv("NATS_URL"), nats.Name("native"), nats.RetryOnFailedConnect(true)))
		check(mesh.Serve(ctx, nc, mesh.Service{ID: nativeID, Version: "1.0.0", Handler: echoBox(busy)}))
	case "slow", "busy":
		check(stdio.Serve(ctx, os.Stdin, os.Stdout, echoBox(map[string]time.Duration{"slow": slowTakes, "busy": busy}[role])))
	default:
		runChild(map[string]func(dst, line []byte) []byte{"json": answerJSON, "echo": answerEcho, "large": answerLarge}[role])
	}
}

const bareSubject = "bare.echo"

// runMicro runs a bare micro service, the least that a NATS service can do.
func runMicro(ctx context.Context) {
	nc := must(nats.Connect(os.Getenv("NATS_URL")))
	svc := must(micro.AddService(nc, micro.Config{Name: "bare", Version: "1.0.0"}))
	check(svc.AddEndpoint("echo", micro.HandlerFunc(func(r micro.Request) { r.Respond(r.Data()) }), micro.WithEndpointSubject(bareSubject)))
	<-ctx.Done()
}

// echoBox is an extension with one tool, which returns its arguments after a while.
func echoBox(takes time.Duration) *mesh.Toolbox {
	box := &mesh.Toolbox{Version: "1.0.0"}
	box.AddRaw("echo", "Returns its arguments.", nil, func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		select {
		case <-time.After(takes):
		case <-ctx.Done():
		}
		return r.Params, nil
	})
	return box
}

// runChild is a child that answers each line as fast as Go can, until its standard input ends.
func runChild(answer func(dst, line []byte) []byte) {
	in, out := bufio.NewReaderSize(os.Stdin, 64<<10), bufio.NewWriterSize(os.Stdout, 64<<10) // no line is longer
	var buf []byte
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		if buf = answer(buf[:0], line); len(buf) > 0 {
			out.Write(append(buf, '\n'))
		}
		if in.Buffered() == 0 {
			out.Flush()
		}
	}
}

// handshake is the answer to initialize. The tool has an ordinary schema, so that the check of arguments is included.
const handshake = `{"server_version":"1","tools":[{"name":"echo","input_schema":{"type":"object",` +
	`"properties":{"text":{"type":"string"}}}}],"hooks":[]}`

// answerJSON decodes and encodes every message, as an ordinary child does.
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
		return jsonrpc.AppendResult(dst, m.ID, []byte(handshake))
	}
	return jsonrpc.AppendResult(dst, m.ID, must(json.Marshal(m.Params)))
}

// answerEcho copies the arguments without decoding them: the fastest possible child.
func answerEcho(dst, line []byte) []byte {
	return splice(dst, line, func(params []byte) []byte { return params })
}

// answerLarge answers every call with largeSize bytes.
func answerLarge(dst, line []byte) []byte {
	return splice(dst, line, func([]byte) []byte { return []byte(`"` + strings.Repeat("x", largeSize-2) + `"`) })
}

func splice(dst, line []byte, result func(params []byte) []byte) []byte {
	e, err := jsonrpc.Scan(line)
	if err != nil || e.ID == nil {
		return dst
	}
	if e.MethodName() == "initialize" {
		return jsonrpc.AppendResult(dst, e.ID, []byte(handshake))
	}
	return jsonrpc.AppendResult(dst, e.ID, result(e.Params))
}
