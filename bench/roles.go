package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natsd"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
	"github.com/extmesh/extmesh/pkg/rpc/stdio"
)

// roleVar is the environment variable that makes this program one of the other processes of a stage.
const roleVar = "BENCH_ROLE"

// play is main of such a process. Children of bridges end with their standard input; the others also end with a
// signal, and with their standard input where the system does not end them with their parent.
func play(role string) {
	ctx, stop := context.Background(), func() {}
	switch role {
	case "natsd", "micro", "native", "follower":
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		go func() { // ends with the process
			io.Copy(io.Discard, os.Stdin)
			stop()
		}()
	}
	switch role {
	case "natsd":
		check(natsd.RunConfig(ctx, os.Getenv("NATS_CONFIG"), slog.New(slog.NewTextHandler(os.Stderr, nil))))
	case "micro":
		runMicro(ctx)
	case "native":
		runNative(ctx)
	case "follower":
		runFollower(ctx)
	case "json":
		runChild(answerJSON)
	case "echo":
		runChild(answerEcho)
	case "slow":
		check(stdio.Serve(ctx, os.Stdin, os.Stdout, echoBox(slowTakes)))
	case "busy":
		check(stdio.Serve(ctx, os.Stdin, os.Stdout, echoBox(busy)))
	case "large":
		runChild(answerLarge)
	default:
		fail("unknown %s %q", roleVar, role)
	}
}

// runMicro runs bare micro services, the least that a NATS service can do. BENCH_SERVICES is their number.
func runMicro(ctx context.Context) {
	nc := must(nats.Connect(os.Getenv("NATS_URL")))
	defer nc.Close()
	echo := micro.HandlerFunc(func(r micro.Request) { r.Respond(r.Data()) })
	for i := range must(strconv.Atoi(os.Getenv("BENCH_SERVICES"))) {
		svc := must(micro.AddService(nc, micro.Config{Name: "bare", Version: "1.0.0"}))
		check(svc.AddEndpoint("echo", echo, micro.WithEndpointSubject(bareSubject(i))))
	}
	<-ctx.Done()
}

// bareSubject is the subject of the bare micro service with this number.
func bareSubject(n int) string { return fmt.Sprintf("bare.echo%d", n) }

// runNative runs an extension that is its own service on NATS.
func runNative(ctx context.Context) {
	nc := must(nats.Connect(os.Getenv("NATS_URL"), nats.Name("native"), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.DontRandomize(), nats.PingInterval(10*time.Second), nats.MaxPingsOutstanding(2)))
	defer nc.Close()
	check(mesh.Serve(ctx, nc, mesh.Service{ID: nativeID, Version: "1.0.0", Handler: echoBox(busy)}))
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

// followerReport is what the role follower publishes when it has the catalog.
type followerReport struct {
	Took       time.Duration // from the start to the whole catalog
	Extensions int
	Bytes      int64 // of the catalog on the heap
}

const followerSubject = "bench.follower"

// runFollower follows the catalog and publishes what that took.
func runFollower(ctx context.Context) {
	nc := must(nats.Connect(os.Getenv("NATS_URL")))
	defer nc.Close()
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	c := mesh.NewCatalog(nc, mesh.CatalogOptions{})
	start := time.Now()
	go c.Run(ctx) // ends with the process
	check(c.WaitSynced(ctx))
	check(nc.Publish(followerSubject, must(json.Marshal(followerReport{time.Since(start), len(c.All()), heap() - before}))))
	<-ctx.Done()
	runtime.KeepAlive(c)
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
