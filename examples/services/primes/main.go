// Primes is an extension that runs as its own service on NATS, for example in a container or on another machine. With
// --stdio the same handler runs as a child of a bridge. docs/writing-an-extension.md explains it.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
	"github.com/extmesh/extmesh/pkg/rpc/stdio"
)

const version = "1.0.0"

// tools is the extension itself.
func tools() *mesh.Toolbox {
	box := &mesh.Toolbox{Version: version}
	mesh.AddTool(box, "factor", "The prime factors of a number.", func(_ context.Context, in struct {
		N int64 `json:"n" jsonschema:"the number, from 2 to 10^15"`
	}) ([]int64, error) {
		return factor(in.N)
	})
	box.AddRaw("count", "Counts the primes below a limit, with progress notifications.",
		[]byte(`{"type":"object","properties":{"below":{"type":"integer","minimum":2,"maximum":100000000}},"required":["below"]}`), count)
	return box
}

// The rest connects it to its callers.
func main() {
	url := flag.String("nats-url", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS server `URL`s, comma-separated")
	prefix := flag.String("prefix", "ext", "the mesh's subject `PREFIX`")
	subjects := flag.String("subject-prefix", "", "the `PREFIX` of this service's subjects (default the mesh's)")
	inbox := flag.String("inbox-prefix", "_INBOX", "`PREFIX` of reply subjects, if permissions require one")
	file := flag.String("context", "", "a context of the nats command, instead of --nats-url and --inbox-prefix: its name, or the absolute path of a `FILE`")
	onStdio := flag.Bool("stdio", false, "serve standard input and output, as a bridge's child, instead of NATS")
	show := flag.Bool("version", false, "print the version")
	flag.Parse()
	if *show {
		fmt.Println("primes", version)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *onStdio {
		err = stdio.Serve(ctx, os.Stdin, os.Stdout, tools())
	} else {
		err = onNATS(ctx, *file, *url, *inbox, *prefix, *subjects)
	}
	if err != nil && ctx.Err() == nil {
		log.Fatal("primes: ", err)
	}
}

// onNATS serves until ctx ends; then it finishes the running calls.
func onNATS(ctx context.Context, file, url, inbox, prefix, subjects string) error {
	// In addition to what mesh.Connect sets: wait for a server that has not started, and send results of calls that end
	// during an outage after it.
	options := []nats.Option{nats.Name("primes"), nats.RetryOnFailedConnect(true), nats.ReconnectBufSize(nats.DefaultReconnectBufSize)}
	var nc *nats.Conn
	var err error
	if file != "" { // credentials in a file are in no environment and in no list of processes
		nc, _, err = natscontext.Connect(file, mesh.ConnectOptions(options...)...)
	} else {
		nc, err = mesh.Connect(url, append(options, nats.CustomInboxPrefix(inbox))...)
	}
	if err != nil {
		return err
	}
	defer nc.Close()
	return mesh.Serve(ctx, nc, mesh.Service{
		ID: "primes", Version: version, Handler: tools(), Name: "Primes", Description: "Factors numbers and counts primes.",
		Prefix: prefix, SubjectPrefix: subjects,
		MaxInflight: 64, // more calls get "overloaded", and callers try another instance
	})
}

// factor tries every divisor up to the square root: at most 32 million.
func factor(n int64) ([]int64, error) {
	if n < 2 || n > 1e15 {
		return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "n must be from 2 to 10^15, not %d", n)
	}
	var out []int64
	for d := int64(2); d*d <= n; d++ {
		for n%d == 0 {
			out = append(out, d)
			n /= d
		}
	}
	if n > 1 {
		out = append(out, n)
	}
	return out, nil
}

// count is an example of a long call: it stops when the caller cancels, and sends its progress.
func count(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
	var in struct{ Below int }
	if err := json.Unmarshal(r.Params, &in); err != nil || in.Below < 2 || in.Below > 1e8 {
		return nil, rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "below must be an integer from 2 to 10^8")
	}
	composite := make([]uint64, in.Below/64+1) // one bit per number: at most 12 MB
	primes, next := 0, 0
	for n := 2; n < in.Below; n++ {
		if n >= next { // 100 times per call
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			// This does nothing if the caller did not request progress. An error needs no handling: a later message replaces a
			// lost one.
			_ = r.Send("notifications/progress", fmt.Appendf(nil, `{"progress":%d,"total":%d}`, n, in.Below))
			next = n + max(1, in.Below/100)
		}
		if composite[n/64]&(1<<(n%64)) != 0 {
			continue
		}
		primes++
		if n*n < in.Below && ctx.Err() != nil { // nearly all of the work is done for the first few thousand
			return nil, ctx.Err()
		}
		for m := n * n; m < in.Below; m += n {
			composite[m/64] |= 1 << (m % 64)
		}
	}
	return fmt.Appendf(nil, `{"primes":%d}`, primes), nil
}
