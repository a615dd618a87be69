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
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/load"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// measure runs op from a number of callers for a while: all together at a rate of calls a second, or with rate 0 as
// often as they can. A failed call fails the measurement.
func measure(rate float64, callers int, span time.Duration, op func(context.Context) error) load.Result {
	r := load.Run(context.Background(), load.Options{Callers: callers, For: span, Rate: rate, Kind: error.Error}, op)
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

func call(c *mesh.Client, child string, size int) func(context.Context) error {
	tool, args := toolOf(child), arguments(size)
	return func(ctx context.Context) error {
		_, err := c.Call(ctx, tool, args)
		return err
	}
}

// workload is a row in which calls are compared with bare requests and a bare pipe, with the limits of docs/performance.md.
type workload struct {
	name          string
	callers, size int
	child         string
	must, aim     string // of the ratio
	cpu, cpuAim   string // of the bridge's processor time for a call
}

const inOne = "embedded (extctl up)" // server, registry and bridge are one process

var workloads = []workload{
	{"latency alone ÷ S, 256 B, json child", 1, 256, "json", "≤ 1.40", "1.15", "", ""},
	{"latency alone ÷ S, 256 B, echo child", 1, 256, "echo", "≤ 1.30", "1.10", "", ""},
	{"latency alone ÷ S, 16 KiB, json child", 1, 16 << 10, "json", "≤ 1.30", "1.10", "", ""},
	{"latency alone ÷ S, 16 KiB, echo child", 1, 16 << 10, "echo", "≤ 1.30", "1.10", "", ""},
	{"throughput of 64 callers ÷ T, 256 B, json child", 64, 256, "json", "≥ 0.65", "0.80", "≤ 8", "5"},
	{"throughput of 64 callers ÷ T, 256 B, echo child", 64, 256, "echo", "≥ 0.82", "0.92", "", ""},
	{"throughput of 64 callers ÷ T, 16 KiB, json child", 64, 16 << 10, "json", "≥ 0.55", "0.75", "≤ 70", "45"},
	{"throughput of 64 callers ÷ T, 16 KiB, echo child", 64, 16 << 10, "echo", "≥ 0.65", "0.85", "", ""},
	{inOne + " latency ÷ S, 256 B, json child", 1, 256, "json", "≤ 1.0", "0.80", "", ""},
	{inOne + " latency ÷ S, 256 B, echo child", 1, 256, "echo", "≤ 0.85", "0.70", "", ""},
}

// compare measures a workload in interleaved rounds. The ratios are latency ÷ S or throughput ÷ T, as
// docs/performance.md defines them.
func (p *performance) compare(ctx context.Context, w workload) {
	client, self, server := p.client, os.Getpid(), p.pid("n1")
	ofBare := meter{pids: []int{self, server, p.pid("micro")}}
	ofCalls := meter{pids: []int{self, server, p.pid("bridge-bench"), p.child(ctx, "bench", w.child), p.pid("registry")}}
	embedded := strings.HasPrefix(w.name, inOne)
	if embedded {
		url, up := p.up(ctx, "ext", "data-"+w.child)
		defer up.end()
		client = p.caller(ctx, url)
	}
	pipe := startPipe(p.path("bench"), w.child)
	defer pipe.close()
	unit, value := "µs", func(r load.Result) float64 { return micros(r.Quantile(0.5)) }
	least := func(bare, pipe float64) float64 { return bare + pipe }
	if w.callers > 1 {
		unit, value = "/s", load.Result.Rate
		least = func(bare, pipe float64) float64 { return min(bare, pipe) }
	}
	data, callOp := request(w.size), call(client, w.child, w.size)
	bareOp := func(context.Context) error { // with the same bytes as a call
		_, err := p.nc.Request(bareSubject, data, 10*time.Second)
		return err
	}
	var ratios, tail, bares, pipes, calls series
	for range p.rounds {
		bare := ofBare.during(func() load.Result { return measure(0, w.callers, p.span, bareOp) })
		through := pipe.measure(w.callers, p.span, data)
		call := ofCalls.during(func() load.Result { return measure(0, w.callers, p.span, callOp) })
		bares, pipes, calls = append(bares, value(bare)), append(pipes, value(through)), append(calls, value(call))
		tail = append(tail, float64(call.Quantile(0.99))/float64(call.Quantile(0.5)))
		ratios = append(ratios, value(call)/least(value(bare), value(through)))
	}
	limitedRow(w.name, ratios, "%.2f", w.must, w.aim, fmt.Sprintf("bare micro %.0f %s, bare pipe %.0f %s, product %.0f %s; p99 ÷ p50 %.1f",
		bares.median(), unit, pipes.median(), unit, calls.median(), unit, tail.median()))
	if embedded {
		return
	}
	p.costs = append(p.costs, slices.Concat([]string{w.name}, ofCalls.cells(), ofBare.cells()))
	if w.cpu != "" {
		what := strings.TrimPrefix(w.name, "throughput of 64 callers ÷ T, ")
		limitedRow("bridge's own µs of CPU a call, 64 callers, "+what, series{ofCalls.each(2)}, "%.1f", w.cpu, w.cpuAim, "")
	}
}

// meter adds up the processor time that some processes use during measurements, and the calls made.
type meter struct {
	pids  []int
	used  [5]time.Duration
	calls int
}

func (m *meter) during(f func() load.Result) (r load.Result) {
	for i, cpu := range use(func() { r = f() }, m.pids...).cpu {
		m.used[i] += cpu
	}
	m.calls += len(r.Took)
	return r
}

// each is the processor time of a process for one call, in µs.
func (m *meter) each(i int) float64 { return micros(m.used[i]) / float64(max(1, m.calls)) }

func (m *meter) cells() (cells []string) {
	for i := range m.pids {
		cells = append(cells, fmt.Sprintf("%.1f", m.each(i)))
	}
	return cells
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
	line := append(slices.Clip(request), '\n')
	if callers == 1 {
		return measure(0, 1, span, func(context.Context) error { return p.roundTrip(line) })
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
