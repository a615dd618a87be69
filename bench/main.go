// Command bench measures what the product adds to the two things it cannot avoid, a bare NATS request and a bare
// pipe to a child: both are measured in the same run, in the same interleaved rounds, and everything is given
// as a ratio to them.
//
//	go run ./bench            # the table, a few minutes
//	go run ./bench -quick     # a look
//
// It builds the programs, runs a NATS server and a bridge as processes of their own, and needs nothing else.
// docs/performance.md holds its output and says how to read it.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/extmesh/extmesh/internal/natsd"
	"github.com/extmesh/extmesh/pkg/rpc"
)

func main() {
	switch os.Getenv("BENCH_ROLE") {
	case "natsd":
		exit(runServer())
	case "micro":
		exit(runMicro())
	case "json":
		exit(runChild(answerJSON))
	case "echo":
		exit(runChild(answerEcho))
	}
	rounds := flag.Int("rounds", 7, "interleaved rounds; medians are given")
	span := flag.Duration("span", 400*time.Millisecond, "how long each figure is measured in each round")
	quick := flag.Bool("quick", false, "three short rounds")
	only := flag.String("only", "", "only the rows whose name contains `TEXT`")
	profile := flag.String("cpuprofile", "", "write a profile of this program, the caller, to `FILE`")
	flag.Parse()
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			exit(err)
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			exit(err)
		}
	}
	if *quick {
		*rounds, *span = 3, 150*time.Millisecond
	}
	err := bench(*rounds, *span, *only)
	pprof.StopCPUProfile()
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
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

// runMicro is the bare micro service: the least that a NATS service can do.
func runMicro() error {
	nc, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		return err
	}
	svc, err := micro.AddService(nc, micro.Config{Name: "bare", Version: "1.0.0"})
	if err != nil {
		return err
	}
	err = svc.AddEndpoint("echo", micro.HandlerFunc(func(r micro.Request) { r.Respond(r.Data()) }), micro.WithEndpointSubject("bare.echo"))
	if err != nil {
		return err
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

// hello lists one tool with an ordinary schema, so that checking arguments costs what it costs.
const hello = `{"server_version":"1","tools":[{"name":"echo","input_schema":{"type":"object",` +
	`"properties":{"text":{"type":"string"}},"required":["text"]}}],"hooks":[]}`

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

// answerEcho only splices: the fastest child there can be.
func answerEcho(dst, line []byte) []byte {
	e, err := rpc.Scan(line)
	if err != nil || e.ID == nil {
		return dst
	}
	if e.MethodName() == "initialize" {
		return rpc.AppendResult(dst, e.ID, []byte(hello))
	}
	return rpc.AppendResult(dst, e.ID, e.Params)
}
