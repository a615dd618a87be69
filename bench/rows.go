package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/extmesh/extmesh/pkg/mesh"
)

// embedded measures latency where server, registry and bridge are one process, as with extctl up.
func (s *stage) embedded(t *table) error {
	name := func(child string) string { return "embedded (extctl up) latency ÷ S, 256 B, " + child + " child" }
	if !t.wants(name("json")) && !t.wants(name("echo")) {
		return nil
	}
	url, _, err := s.up("ext", "data")
	if err != nil {
		return err
	}
	var client *mesh.Client
	// Where it is to listen is tried before NATS starts: a connection may meet that.
	if s.await(10*time.Second, func() bool { client, _, err = s.dial(url, mesh.LowLatency()); return err == nil }) != nil {
		return err
	}
	args := arguments(256)
	limits := map[string][2]string{"json": {"≤ 1.0", "0.80"}, "echo": {"≤ 0.85", "0.70"}}
	for _, child := range []string{"json", "echo"} {
		limit := limits[child]
		if !t.wants(name(child)) {
			continue
		}
		pipe, err := s.startPipe(child)
		if err != nil {
			return err
		}
		defer pipe.close()
		bare, product := s.bareRequest(args), call(client, child, args)
		r := &comparison{callers: 1}
		for range t.opt.rounds {
			m, err := measure(1, t.opt.span, bare)
			if err != nil {
				return err
			}
			p, err := pipe.measure(1, t.opt.span, args)
			if err != nil {
				return err
			}
			x, err := measure(1, t.opt.span, product)
			if err != nil {
				return err
			}
			r.add(m, p, x)
		}
		t.row(name(child), r.ratio, "%.2f", limit[0], limit[1], r.how())
	}
	return nil
}

// largeAnswer measures an answer of many chunks, beside the same bytes published bare.
func (s *stage) largeAnswer(t *table) error {
	name := fmt.Sprintf("MB/s of an answer of %d MB, streaming caller", t.opt.large/1_000_000)
	if !t.wants(name) {
		return nil
	}
	args := json.RawMessage(fmt.Sprintf(`{"bytes":%d}`, t.opt.large))
	const fresh = 5 // answers at first, which touch memory that nobody has touched before
	var first, rates, line []float64
	for i := range fresh + t.opt.rounds {
		began := time.Now()
		result, err := s.client.Call(context.Background(), "ext_echo_big", args)
		if err != nil {
			return err
		}
		if len(result) != t.opt.large {
			return fmt.Errorf("the answer has %d bytes", len(result))
		}
		rate := float64(t.opt.large) / 1e6 / time.Since(began).Seconds()
		if i < fresh {
			first = append(first, rate)
			continue
		}
		rates = append(rates, rate)
		r, err := s.lineRate(t.opt.large)
		if err != nil {
			return err
		}
		line = append(line, r)
	}
	t.row(name, rates, "%.0f", "≥ 150", "the broker's", fmt.Sprintf("the same bytes published and received bare: %.0f MB/s; the first %d answers, in fresh memory, do not count: %.0f to %.0f MB/s",
		median(line), fresh, slices.Min(first), slices.Max(first)))
	return nil
}

// lineRate is how many MB/s go from one connection to another, in messages as large as the server takes.
func (s *stage) lineRate(total int) (float64, error) {
	from, err := nats.Connect(s.url)
	if err != nil {
		return 0, err
	}
	defer from.Close()
	sub, err := s.nc.SubscribeSync("bare.line")
	if err != nil {
		return 0, err
	}
	defer sub.Unsubscribe()
	if err := s.nc.Flush(); err != nil {
		return 0, err
	}
	chunk := make([]byte, min(total, int(s.nc.MaxPayload())))
	began := time.Now()
	for sent := 0; sent < total; sent += len(chunk) {
		if err := from.Publish("bare.line", chunk); err != nil {
			return 0, err
		}
	}
	for got := 0; got < total; {
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			return 0, err
		}
		got += len(m.Data)
	}
	return float64(total) / 1e6 / time.Since(began).Seconds(), nil
}

// beside measures a fast tool alone and while many calls wait at its slow neighbour.
func (s *stage) beside(t *table) error {
	const name = "p99 of a fast tool with 200 five-second calls waiting on its neighbour ÷ without"
	if !t.wants(name) {
		return nil
	}
	fast, slow := call(s.client, "echo", arguments(256)), call(s.client, "slow", arguments(256))
	span := min(3*time.Second, 5*t.opt.span)
	var ratios, alone, busy []float64
	for range min(t.opt.rounds, 5) {
		without, err := measure(1, span, fast)
		if err != nil {
			return err
		}
		var waiting sync.WaitGroup
		results, before := make(chan error, 200), s.taken("slow")
		for range 200 {
			waiting.Go(func() { results <- slow() }) // ends with its call; waited for below
		}
		if err := s.await(5*time.Second, func() bool { return s.taken("slow") >= before+200 }); err != nil {
			return fmt.Errorf("the slow calls are not all under way: %w", err)
		}
		with, err := measure(1, span, fast)
		if err != nil {
			return err
		}
		if ended := len(results); ended > 0 {
			return fmt.Errorf("%d slow calls ended before the measurement did", ended)
		}
		waiting.Wait()
		for range 200 {
			if err := <-results; err != nil {
				return err
			}
		}
		a, b := us(without.Quantile(0.99)), us(with.Quantile(0.99))
		alone, busy, ratios = append(alone, a), append(busy, b), append(ratios, b/a)
	}
	t.row(name, ratios, "%.2f", "≤ 1.2", "1.05", fmt.Sprintf("p99 %.0f µs without, %.0f µs with", median(alone), median(busy)))
	return nil
}

// taken is how many calls a service has taken up so far, by micro's own count.
func (s *stage) taken(name string) int {
	m, err := s.nc.Request("$SRV.STATS."+name, nil, time.Second)
	var stats micro.Stats
	if err != nil || json.Unmarshal(m.Data, &stats) != nil {
		return 0
	}
	n := 0
	for _, e := range stats.Endpoints {
		n += e.NumRequests
	}
	return n
}

func (s *stage) await(limit time.Duration, ok func() bool) error {
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s", limit)
		}
	}
	return nil
}

var allocLine = regexp.MustCompile(`(?m)^BenchmarkServe/ext\.(bare|full)\.rpc/headers=(\d)\S*\s.*\s(\d+) allocs/op`)

// allocations runs the benchmark that compares the bridge's path with a bare endpoint.
func (s *stage) allocations(t *table) error {
	const name = "allocations a call in the bridge, over a bare micro endpoint with the same headers"
	if !t.wants(name) {
		return nil
	}
	out, err := exec.Command("go", "test", "-run", "^$", "-bench", "^BenchmarkServe$", "-benchmem", "./internal/bridge").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	n := map[string]float64{}
	for _, m := range allocLine.FindAllStringSubmatch(string(out), -1) {
		n[m[1]+m[2]], err = strconv.ParseFloat(m[3], 64)
		if err != nil {
			return err
		}
	}
	if len(n) != 4 {
		return fmt.Errorf("unexpected output:\n%s", out)
	}
	t.row(name, []float64{n["full4"] - n["bare4"]}, "%.0f", "≤ 8", "≤ 3", fmt.Sprintf("with four headers; %.0f without", n["full0"]-n["bare0"]))
	return nil
}
