package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/load"
	"github.com/extmesh/extmesh/internal/natsd/storelock"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/mesh/schema"
)

// performance measures the rows of docs/performance.md.
type performance struct {
	stage
	rounds int           // of which the median is printed
	span   time.Duration // of each measurement in each round
	idle   int           // idle extensions of one bridge
	env    []string      // of the bridge, in addition
	costs  [][]string    // rows of the table of processor time
	client *mesh.Client
}

func measurePerformance(ctx context.Context, set setup) {
	p := &performance{rounds: 7, span: 400 * time.Millisecond, idle: 1000, env: strings.Fields(set.env)}
	if set.quick {
		p.rounds, p.span, p.idle = 3, 150*time.Millisecond, 100
	}
	defer p.close()
	p.set(ctx, set, 1)
	for _, id := range extensions {
		p.manifest("ext", id, id)
	}
	p.startRole("micro", "micro")
	p.start("registry", "registry", nil, "--log-level", "error")
	p.startBridge("bench", "ext", p.env...)
	p.firstAnswer(ctx, p.nc, bareSubject)
	p.client = p.caller(ctx, p.urls(0))
	heading(fmt.Sprintf("medians of %d interleaved rounds of %s, with the lowest and the highest; every call has the headers Ext-Timeout, "+
		"Ext-Call-Id and Ext-Stream, bare requests have none; more of the bridge's environment: %q", p.rounds, p.span, p.env))
	head("", "measured", "spread", "must", "aim", "")
	for _, w := range workloads {
		if p.only.MatchString(w.name) {
			p.compare(ctx, w)
		}
	}
	for _, m := range []struct {
		name    string // of the first row, if there are several
		measure func(ctx context.Context, name string)
	}{
		{"p99 ÷ p50 at half of the peak load, 256 B, json child", p.halfLoad},
		{"MB/s of an answer of 25 MB, streaming caller", p.largeAnswer},
		{"p99 of a fast tool with 200 five-second calls waiting on its neighbour ÷ without", p.slowNeighbour},
		{"ms from start to first call beyond the child's own start-up, embedded", p.firstCalls},
		{"MB of a bridge with one idle child", p.bridgeMemory},
		{fmt.Sprintf("MB of a bridge with %d idle extensions", p.idle), p.idleFleet},
	} {
		if p.only.MatchString(m.name) {
			m.measure(ctx, m.name)
		}
	}
	if len(p.costs) == 0 {
		return
	}
	fmt.Print("\nµs of processor time for each call, by process; on the right, for each bare request:\n\n")
	head("", "caller", "server", "bridge", "child", "registry", "bare: caller", "server", "service")
	for _, cells := range p.costs {
		row(cells...)
	}
}

// extensions are the extensions that most rows use. Their ids are their roles.
var extensions = []string{"json", "echo", "slow", "large"}

// caller is a client as an agent has one, when its catalog has all extensions.
func (p *performance) caller(ctx context.Context, urls string) *mesh.Client {
	f := p.follow(urls, "caller")
	await(ctx, []*follower{f}, time.Now(), 30*time.Second, func(c *mesh.Catalog) bool {
		return !slices.ContainsFunc(extensions, func(id string) bool { e, _, ok := c.Tool(toolOf(id)); return !ok || !e.State.Available })
	}).last()
	return mesh.NewClient(f.nc, mesh.ClientOptions{Catalog: f.catalog, Schemas: schema.Compile})
}

func toolOf(id string) string { return "ext_" + id + "_echo" }

// limitedRow prints the values of a row. A limit that the median, as it is printed, does not keep is marked.
func limitedRow(name string, values series, format, must, aim, how string) {
	text := fmt.Sprintf(format, values.median())
	sign, number, limited := strings.Cut(must, " ")
	bound, _ := strconv.ParseFloat(number, 64)
	shown, _ := strconv.ParseFloat(text, 64)
	if limited && (sign == "≥" && shown < bound || sign == "≤" && shown > bound) {
		must += ", missed"
	}
	row(name, "**"+text+"**", values.spread(format), must, aim, how)
}

// halfLoad measures the tail at half of the peak load, with callers that call at their own times.
func (p *performance) halfLoad(ctx context.Context, name string) {
	op := call(p.client, "json", 256)
	var tails, rates, medians series
	for range p.rounds {
		peak := measure(0, 64, p.span, op).Rate()
		r := measure(peak/2, 64, 2*p.span, op)
		tails = append(tails, float64(r.Quantile(0.99))/float64(r.Quantile(0.5)))
		rates, medians = append(rates, r.Rate()), append(medians, micros(r.Quantile(0.5)))
	}
	limitedRow(name, tails, "%.1f", "≤ 8", "4", fmt.Sprintf("%.0f /s, p50 %.0f µs", rates.median(), medians.median()))
}

// up starts extctl up for the extensions in a directory of the stage, and waits for the note with its address and
// password, which it writes when NATS listens.
func (p *performance) up(ctx context.Context, dir, data string) (url string, up *process) {
	data = filepath.Join(p.dir, data)
	up = p.start("up", "extctl", p.env, "up", filepath.Join(p.dir, dir), "--listen", "0", "--data", data, "--log-level", "error")
	var note storelock.Info
	until(ctx, 10*time.Second, "the address of extctl up", func() {
		check(json.Unmarshal(must(os.ReadFile(storelock.NotePath(daemon.StoreDir(data)))), &note))
	})
	return note.URLWithPassword(), up
}

const largeSize = 25_000_000

// largeAnswer measures an answer of many chunks.
func (p *performance) largeAnswer(ctx context.Context, name string) {
	const fresh = 5 // the first answers use memory of four processes for the first time
	var all series
	for range fresh + p.rounds {
		began := time.Now()
		if answer := must(p.client.Call(ctx, toolOf("large"), json.RawMessage("{}"))); len(answer) != largeSize {
			fail("the large answer has %d bytes", len(answer))
		}
		all = append(all, largeSize/1e6/time.Since(began).Seconds())
	}
	limitedRow(name, all[fresh:], "%.0f", "≥ 150", "the broker's", fmt.Sprintf("the first %d answers, in fresh memory, are not counted: %.0f to %.0f MB/s",
		fresh, slices.Min(all[:fresh]), slices.Max(all[:fresh])))
}

const slowTakes = 5 * time.Second // for a call of the slow extension

// slowNeighbour measures a fast tool alone, and while many calls wait at another extension of its bridge.
func (p *performance) slowNeighbour(ctx context.Context, name string) {
	fast, span, hundred := call(p.client, "echo", 256), min(3*time.Second, 5*p.span), load.Options{Callers: 100, Calls: 100, Kind: error.Error}
	slow := []func(context.Context) error{call(p.client, "slow", 256), call(p.caller(ctx, p.urls(0)), "slow", 256)} // each may have 128 calls in flight
	var ratios, alone, busy series
	for range min(p.rounds, 5) {
		without := measure(0, 1, span, fast)
		waiting := make(chan load.Result, len(slow))
		for _, op := range slow {
			go func() { waiting <- load.Run(ctx, hundred, op) }() // ends with its calls; waited for below
		}
		pause(ctx, time.Second) // until they run
		with := measure(0, 1, span, fast)
		for n := range slow {
			if ended, r := n == 0 && len(waiting) > 0, <-waiting; ended || r.Failed() > 0 {
				fail("the slow calls failed (%v), or ended during the measurement", r.Errors)
			}
		}
		a, b := micros(without.Quantile(0.99)), micros(with.Quantile(0.99))
		alone, busy, ratios = append(alone, a), append(busy, b), append(ratios, b/a)
	}
	limitedRow(name, ratios, "%.2f", "≤ 1.2", "1.05", fmt.Sprintf("p99 %.0f µs without, %.0f µs with", alone.median(), busy.median()))
}

// firstAnswer sends requests until one is answered.
func (p *performance) firstAnswer(ctx context.Context, nc *nats.Conn, subject string) {
	until(ctx, 20*time.Second, "an answer on "+subject, func() { must(nc.Request(subject, request(256), time.Second)) })
}

// lone starts a bridge with one extension, which have the same name.
func (p *performance) lone(ctx context.Context, name string) *process {
	bridge := p.startBridge(name, name, p.env...)
	p.firstAnswer(ctx, p.nc, prefix.RPC(name))
	return bridge
}

// firstCalls measures the time from a program's start to the first answered call, without the time that the child itself takes.
func (p *performance) firstCalls(ctx context.Context, name string) {
	p.manifest("solo", "solo", "echo")
	var child, ext, emb series
	for i := range p.rounds {
		began := time.Now()
		pipe := startPipe(p.path("bench"), "echo")
		check(pipe.roundTrip(append(jsonrpc.AppendRequest(nil, []byte("1"), "initialize", nil), '\n')))
		own := time.Since(began)
		pipe.close()

		began = time.Now()
		bridge := p.lone(ctx, "solo")
		ext = append(ext, millis(time.Since(began)-own))
		bridge.end()

		began = time.Now()
		url, up := p.up(ctx, "solo", fmt.Sprint("solo-data-", i))
		nc := must(nats.Connect(url))
		p.firstAnswer(ctx, nc, prefix.RPC("solo"))
		child, emb = append(child, millis(own)), append(emb, millis(time.Since(began)-own))
		nc.Close()
		up.end()
	}
	how := fmt.Sprintf("the child alone takes %.1f ms", child.median())
	limitedRow(name, emb, "%.1f", "≤ 60", "12", how+"; a new data directory each time")
	limitedRow(strings.Replace(name, "embedded", "external server", 1), ext, "%.1f", "≤ 25", "8", how)
}

// bridgeMemory measures a bridge with one child: idle, and under 64 callers.
func (p *performance) bridgeMemory(ctx context.Context, name string) {
	p.manifest("lone", "lone", "echo")
	bridge := p.lone(ctx, "lone")
	defer bridge.end()
	pause(ctx, 5*time.Second) // what the start needed is released
	now, _ := memory(bridge.pid())
	resetPeak(bridge.pid())
	measure(0, 64, 5*time.Second, func(ctx context.Context) error {
		_, err := p.client.CallExt(ctx, "lone", "tools/echo", arguments(256))
		return err
	})
	_, most := memory(bridge.pid())
	limitedRow(name, series{now}, "%.1f", "≤ 22", "14", "resident; 5 s after its first call")
	limitedRow("MB of a bridge with one child, peak under 64 callers", series{most}, "%.1f", "≤ 32", "20", "resident, at most; 256 B for 5 s")
}

// tiny is a child that answers initialize and then waits, with its pipes open.
const tiny = `read -r line; id=${line#*'"id":'}; id=${id%%[,\}]*}
printf '{"jsonrpc":"2.0","id":%s,"result":{"server_version":"1","tools":[{"name":"echo"}],"hooks":[]}}\n' "$id"
exec cat`

// idleFleet measures what many idle extensions cost their bridge.
func (p *performance) idleFleet(ctx context.Context, name string) {
	for i := range p.idle {
		p.manifest("fleet", fmt.Sprint("tiny", i), "", "sh", "-c", tiny)
	}
	before, began := p.registryStatus(ctx).Extensions["ready"], time.Now()
	bridge := p.startBridge("fleet", "fleet", p.env...)
	defer bridge.end()
	until(ctx, 3*time.Minute, "all idle extensions are ready", func() {
		if n := p.registryStatus(ctx).Extensions["ready"] - before; n < p.idle {
			fail("%d of %d are", n, p.idle)
		}
	})
	ready := time.Since(began)
	pause(ctx, 10*time.Second) // what the start needed is released
	idle := use(func() { pause(ctx, 20*time.Second) }, bridge.pid())
	mb, _ := memory(bridge.pid())
	limitedRow(name, series{mb}, "%.1f", "≤ 150", "100", fmt.Sprintf("without the children; all were ready %.1f s after the start", ready.Seconds()))
	limitedRow(fmt.Sprintf("%% of one core for %d idle extensions", p.idle), series{100 * idle.share(0)}, "%.2f", "≤ 2", "", "the bridge, over 20 s")
}
