package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/load"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// measure runs op from a number of callers for a while: all together at a rate of calls a second, or with rate 0 as
// often as they can. A failed call fails the measurement.
func measure(rate float64, callers int, span time.Duration, op func() error) load.Result {
	r := load.Run(context.Background(), load.Options{Callers: callers, For: span, Rate: rate, Kind: error.Error}, func(context.Context) error { return op() })
	for text := range r.Errors {
		check(errors.New(text))
	}
	return r
}

func arguments(size int) json.RawMessage {
	return json.RawMessage(`{"text":"` + strings.Repeat("x", size-len(`{"text":""}`)) + `"}`)
}

// request is a request for the tool echo, with arguments of so many bytes.
func request(size int) []byte {
	return jsonrpc.AppendRequest(nil, []byte("1"), "tools/echo", arguments(size))
}

// bareRequest is a request to the bare micro service, with the same bytes as a call.
func (p *performance) bareRequest(size int) func() error {
	data := request(size)
	return func() error {
		_, err := p.nc.Request(bareSubject, data, 10*time.Second)
		return err
	}
}

func call(ctx context.Context, c *mesh.Client, child string, size int) func() error {
	tool, args := toolOf(child), arguments(size)
	return func() error {
		_, err := c.Call(ctx, tool, args)
		return err
	}
}

// comparison measures one load with a bare request, a bare pipe and a call, in interleaved rounds.
type comparison struct {
	callers, size       int
	bare, product       func() error
	ofBare, ofProduct   meter
	ratios, tail        series
	bares, pipes, calls series // µs of a lone caller, calls a second of many
}

func (p *performance) newComparison(ctx context.Context, callers, size int, child string, client *mesh.Client) *comparison {
	return &comparison{callers: callers, size: size, bare: p.bareRequest(size), product: call(ctx, client, child, size)}
}

func (c *comparison) measure(p *performance, child string) {
	pipe := startPipe(p.self, child)
	defer pipe.close()
	run := func(op func() error) load.Result { return measure(0, c.callers, p.span, op) }
	for range p.rounds {
		bare := c.ofBare.during(func() load.Result { return run(c.bare) })
		through := pipe.measure(c.callers, p.span, request(c.size))
		call := c.ofProduct.during(func() load.Result { return run(c.product) })
		c.bares, c.pipes, c.calls = append(c.bares, c.value(bare)), append(c.pipes, c.value(through)), append(c.calls, c.value(call))
		c.tail = append(c.tail, float64(call.Quantile(0.99))/float64(call.Quantile(0.5)))
		c.ratios = append(c.ratios, c.ratio(bare, through, call))
	}
}

// value is the latency of a lone caller, the throughput of many.
func (c *comparison) value(r load.Result) float64 {
	if c.callers > 1 {
		return r.Rate()
	}
	return micros(r.Quantile(0.5))
}

// ratio is latency ÷ S or throughput ÷ T, as docs/performance.md defines them.
func (c *comparison) ratio(bare, pipe, call load.Result) float64 {
	if c.callers > 1 {
		return c.value(call) / min(c.value(bare), c.value(pipe))
	}
	return c.value(call) / (c.value(bare) + c.value(pipe))
}

// String explains the ratio.
func (c *comparison) String() string {
	unit := "µs"
	if c.callers > 1 {
		unit = "/s"
	}
	return fmt.Sprintf("bare micro %.0f %s, bare pipe %.0f %s, product %.0f %s; p99 ÷ p50 %.1f",
		c.bares.median(), unit, c.pipes.median(), unit, c.calls.median(), unit, c.tail.median())
}

// meter adds up the processor time that some processes use during measurements, and the calls made.
type meter struct {
	pids  []int
	used  [8]time.Duration
	calls int
}

func (m *meter) during(f func() load.Result) load.Result {
	for i, pid := range m.pids {
		m.used[i] -= cpuTime(pid)
	}
	r := f()
	for i, pid := range m.pids {
		m.used[i] += cpuTime(pid)
	}
	m.calls += len(r.Took)
	return r
}

// each is the processor time of a process for one call, in µs.
func (m *meter) each(i int) string {
	return fmt.Sprintf("%.1f", micros(m.used[i])/float64(max(1, m.calls)))
}

// barePipe is a child and two pipes without anything in between: the least that a call of a child can cost.
type barePipe struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startPipe(self, role string) *barePipe {
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	in, out := must(cmd.StdinPipe()), must(cmd.StdoutPipe())
	check(cmd.Start())
	return &barePipe{cmd, in, bufio.NewReaderSize(out, 64<<10)}
}

func (p *barePipe) close() {
	p.in.Close()
	p.cmd.Wait()
}

// measure keeps requests in the pipe for a while. One caller makes round trips. For many callers, one goroutine writes
// a request of each at once, and another reads: a fast host would do the same.
func (p *barePipe) measure(callers int, span time.Duration, request []byte) load.Result {
	line := append(request, '\n')
	if callers == 1 {
		return measure(0, 1, span, func() error { return p.roundTrip(line) })
	}
	batch, written, began := bytes.Repeat(line, callers), make(chan bool, 2), time.Now()
	go func() { // ends after span; the loop below waits for it
		defer close(written)
		for time.Since(began) < span {
			written <- true
			p.in.Write(batch) // if it fails, so does the reading
		}
	}()
	answers := 0
	for range written {
		for range callers {
			must(p.out.ReadSlice('\n'))
			answers++
		}
	}
	return load.Result{Took: make([]time.Duration, answers), Elapsed: time.Since(began)}
}

func (p *barePipe) roundTrip(line []byte) error {
	if _, err := p.in.Write(line); err != nil {
		return err
	}
	_, err := p.out.ReadSlice('\n')
	return err
}
