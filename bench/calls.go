package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/bench/internal/proc"
	"github.com/extmesh/extmesh/internal/load"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// measure runs op from so many callers for a while; one call that fails fails it all.
func measure(callers int, span time.Duration, op func() error) (load.Result, error) {
	r := load.Run(context.Background(), load.Options{Callers: callers, For: span, Kind: error.Error}, func(context.Context) error { return op() })
	var failed error
	for kind := range r.Errors {
		failed = errors.Join(failed, errors.New(kind))
	}
	return r, failed
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(v))[len(v)/2]
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// arguments are those of the tool echo, size bytes long.
func arguments(size int) json.RawMessage {
	return json.RawMessage(`{"text":"` + strings.Repeat("x", size-len(`{"text":""}`)) + `"}`)
}

// bareRequest is a request to the bare micro service, of the same bytes as a call.
func (s *stage) bareRequest(args json.RawMessage) func() error {
	request := rpc.AppendRequest(nil, []byte("1"), "tools/echo", args)
	return func() error {
		_, err := s.nc.Request("bare.echo", request, 10*time.Second)
		return err
	}
}

// headedRequest is a bareRequest with the headers of a call.
func (s *stage) headedRequest(args json.RawMessage) func() error {
	request := rpc.AppendRequest(nil, []byte("1"), "tools/echo", args)
	timeout, stream, id := []string{"30000"}, []string{"1"}, []string{s.nc.NewInbox()}
	return func() error {
		m := &nats.Msg{Subject: "bare.echo", Data: request, Header: nats.Header{mesh.HeaderTimeout: timeout,
			mesh.HeaderCallID: id, mesh.HeaderStream: stream}}
		_, err := s.nc.RequestMsg(m, 10*time.Second)
		return err
	}
}

// call is a call of the product.
func call(c *mesh.Client, child string, args json.RawMessage) func() error {
	return func() error {
		_, err := c.Call(context.Background(), "ext_"+child+"_echo", args)
		return err
	}
}

// calls measures latency alone and throughput of a crowd, of small messages and large.
func (s *stage) calls(t *table) error {
	limits := map[string][2]string{
		"1 256 json": {"≤ 1.40", "1.15"}, "1 256 echo": {"≤ 1.30", "1.10"}, "1 16384 json": {"≤ 1.30", "1.10"}, "1 16384 echo": {"≤ 1.30", "1.10"},
		"64 256 json": {"≥ 0.65", "0.80"}, "64 256 echo": {"≥ 0.82", "0.92"}, "64 16384 json": {"≥ 0.55", "0.75"}, "64 16384 echo": {"≥ 0.65", "0.85"},
	}
	for _, callers := range []int{1, 64} {
		for _, size := range []int{256, 16 << 10} {
			for _, child := range []string{"json", "echo"} {
				name := fmt.Sprintf("latency alone ÷ S, %s, %s child", bytesOf(size), child)
				if callers > 1 {
					name = fmt.Sprintf("throughput of %d callers ÷ T, %s, %s child", callers, bytesOf(size), child)
				}
				if !t.wants(name) {
					continue
				}
				r, err := s.compare(t.opt, callers, size, child)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				limit := limits[fmt.Sprintf("%d %d %s", callers, size, child)]
				t.row(name, r.ratio, "%.2f", limit[0], limit[1], r.how())
				t.spent(name, r)
				if callers > 1 && child == "json" {
					must, aim := "≤ 8", "5"
					if size > 256 {
						must, aim = "≤ 70", "45"
					}
					t.row(fmt.Sprintf("bridge's own µs of CPU a call, %d callers, %s, json child", callers, bytesOf(size)), []float64{r.cpu("bridge")}, "%.1f", must, aim, "")
				}
			}
		}
	}
	return nil
}

func bytesOf(n int) string {
	if n >= 1<<10 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// comparison is what the rounds of one row measured.
type comparison struct {
	callers                          int
	bare, pipe, product, ratio, tail []float64
	headed                           []float64 // the ratio, where the bare request has the headers, too
	ordinary                         []float64 // the ratio, from a caller without mesh.LowLatency
	calls, bareCalls                 int
	used                             map[string]time.Duration // processor time by process; of the bare request's as "bare …"
}

func (r *comparison) how() string {
	unit := "µs"
	if r.callers > 1 {
		unit = "/s"
	}
	how := fmt.Sprintf("bare micro %.0f %s, bare pipe %.0f %s, product %.0f %s; p99 ÷ p50 %.1f",
		median(r.bare), unit, median(r.pipe), unit, median(r.product), unit, median(r.tail))
	if len(r.headed) > 0 {
		how += fmt.Sprintf("; with the four headers on the bare request, too: %.2f", median(r.headed))
	}
	if len(r.ordinary) > 0 {
		how += fmt.Sprintf("; from a caller with an ordinary connection: %.2f", median(r.ordinary))
	}
	return how
}

// cpu is what a process used for each call, in µs.
func (r *comparison) cpu(process string) float64 {
	n := r.calls
	if strings.HasPrefix(process, "bare ") {
		n = r.bareCalls
	}
	if n == 0 {
		return 0
	}
	return us(r.used[process]) / float64(n)
}

// compare measures one load against one child, in rounds: bare request, bare pipe, product.
func (s *stage) compare(o options, callers, size int, child string) (*comparison, error) {
	args := arguments(size)
	pipe, err := s.startPipe(child)
	if err != nil {
		return nil, err
	}
	defer pipe.close()
	pids := map[string]int{"caller": os.Getpid(), "server": s.natsd.Process.Pid, "bridge": s.bridge.Process.Pid,
		"child": childOf(s.bridge.Process.Pid, child), "registry": s.registry.Process.Pid}
	barePids := map[string]int{"bare caller": os.Getpid(), "bare server": s.natsd.Process.Pid, "bare service": s.micro.Process.Pid}
	bare, headed, product, plain := s.bareRequest(args), s.headedRequest(args), call(s.client, child, args), call(s.plain, child, args)
	r := &comparison{callers: callers, used: map[string]time.Duration{}}
	for range o.rounds {
		spent := watch(barePids, r.used)
		m, err := measure(callers, o.span, bare)
		spent()
		if err != nil {
			return nil, err
		}
		p, err := pipe.measure(callers, o.span, args)
		if err != nil {
			return nil, err
		}
		spent = watch(pids, r.used)
		x, err := measure(callers, o.span, product)
		spent()
		if err != nil {
			return nil, err
		}
		h, err := measure(callers, o.span, headed)
		if err != nil {
			return nil, err
		}
		o, err := measure(callers, o.span, plain)
		if err != nil {
			return nil, err
		}
		r.add(m, p, x)
		r.headed, r.ordinary = append(r.headed, r.against(h, p, x)), append(r.ordinary, r.against(m, p, o))
	}
	return r, nil
}

func (r *comparison) add(bare, pipe, product load.Result) {
	r.bareCalls += len(bare.Took)
	r.calls += len(product.Took)
	r.tail = append(r.tail, float64(product.Quantile(0.99))/float64(product.Quantile(0.5)))
	m, p, x := us(bare.Quantile(0.5)), us(pipe.Quantile(0.5)), us(product.Quantile(0.5))
	if r.callers > 1 {
		m, p, x = bare.Rate(), pipe.Rate(), product.Rate()
	}
	r.bare, r.pipe, r.product = append(r.bare, m), append(r.pipe, p), append(r.product, x)
	r.ratio = append(r.ratio, r.against(bare, pipe, product))
}

// against is the ratio of a row: latency ÷ S, or throughput ÷ T.
func (r *comparison) against(bare, pipe, product load.Result) float64 {
	if r.callers > 1 {
		return product.Rate() / min(bare.Rate(), pipe.Rate())
	}
	return us(product.Quantile(0.5)) / (us(bare.Quantile(0.5)) + us(pipe.Quantile(0.5)))
}

// watch adds what the processes use until the func is called.
func watch(pids map[string]int, used map[string]time.Duration) func() {
	before := map[string]time.Duration{}
	for name, pid := range pids {
		before[name] = proc.CPU(pid)
	}
	return func() {
		for name, pid := range pids {
			used[name] += proc.CPU(pid) - before[name]
		}
	}
}

// half measures the tail at half of the peak load, with callers that come at their own times.
func (s *stage) half(t *table) error {
	const name = "p99 ÷ p50 at half of the peak load, 256 B, json child"
	if !t.wants(name) {
		return nil
	}
	const callers = 64
	op := call(s.client, "json", arguments(256))
	var tails, rates, p50 []float64
	for range t.opt.rounds {
		peak, err := measure(callers, t.opt.span, op)
		if err != nil {
			return err
		}
		r, err := paced(callers, peak.Rate()/2, 2*t.opt.span, op)
		if err != nil {
			return err
		}
		tails = append(tails, float64(r.Quantile(0.99))/float64(r.Quantile(0.5)))
		rates, p50 = append(rates, r.Rate()), append(p50, us(r.Quantile(0.5)))
	}
	t.row(name, tails, "%.1f", "≤ 8", "4", fmt.Sprintf("%.0f /s, p50 %.0f µs", median(rates), median(p50)))
	return nil
}

// paced calls at a rate: each caller at its own, evenly spread times, and at once where it is late.
func paced(callers int, rate float64, span time.Duration, op func() error) (load.Result, error) {
	every := time.Duration(float64(time.Second) * float64(callers) / rate)
	lanes := make(chan time.Time, callers)
	for i := range callers {
		lanes <- time.Now().Add(every * time.Duration(i) / time.Duration(callers))
	}
	var took [][]time.Duration
	results := make(chan []time.Duration)
	began := time.Now()
	var failed error
	errs := make(chan error, callers)
	for range callers {
		go func() { // ends with the span; the loop below waits for it
			var mine []time.Duration
			for at := <-lanes; time.Since(began) < span; at = at.Add(every) {
				time.Sleep(time.Until(at))
				start := time.Now()
				if err := op(); err != nil {
					errs <- err
					break
				}
				mine = append(mine, time.Since(start))
			}
			results <- mine
		}()
	}
	for range callers {
		took = append(took, <-results)
	}
	select {
	case failed = <-errs:
	default:
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	return load.Result{Took: all, Elapsed: time.Since(began)}, failed
}
