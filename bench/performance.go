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
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/natsd/storelock"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/mesh/schema"
)

// performance measures the rows of docs/performance.md.
type performance struct {
	stage
	env    []string // of the bridge, in addition
	table  *table
	costs  [][]string // rows of the table of processor time
	client *mesh.Client
}

func measurePerformance(ctx context.Context, set setup) {
	if set.quick {
		set.rounds, set.span, set.idle = 3, 150*time.Millisecond, min(set.idle, 100)
	}
	p := &performance{env: strings.Fields(set.env)}
	defer p.close()
	p.set(ctx, set, 1)
	for _, id := range extensions {
		p.manifest("ext", id, id)
	}
	p.startRole("micro")
	p.start("registry", "registry", nil, "--log-level", "error")
	p.startBridge("bench", "ext", p.env...)
	p.firstAnswer(ctx, p.nc, bareSubject)
	p.client = p.caller(ctx, p.urls(0))
	heading(fmt.Sprintf("medians of %d interleaved rounds of %s, with the lowest and the highest; every call has the headers Ext-Timeout, "+
		"Ext-Call-Id and Ext-Stream, bare requests have none; more of the bridge's environment: %q", p.rounds, p.span, p.env))
	p.table = newTable("", "measured", "spread", "must", "aim", "")
	for _, measure := range []func(context.Context){p.calls, p.halfLoad, p.embedded, p.largeAnswer, p.slowNeighbour, p.firstCalls, p.bridgeMemory, p.idleFleet} {
		measure(ctx)
	}
	if len(p.costs) == 0 {
		return
	}
	fmt.Print("\nµs of processor time for each call, by process; on the right, for each bare request:\n\n")
	t := newTable("", "caller", "server", "bridge", "child", "registry", "bare: caller", "server", "service")
	for _, cells := range p.costs {
		t.row(cells...)
	}
}

// wants reports whether one of these rows is to be measured.
func (p *performance) wants(names ...string) bool {
	return slices.ContainsFunc(names, p.only.MatchString)
}

// extensions are the extensions that most rows use. Their ids are their roles.
var extensions = []string{"json", "echo", "slow", "large"}

// caller is a client as an agent has one, when its catalog has all extensions.
func (p *performance) caller(ctx context.Context, urls string) *mesh.Client {
	f := p.follow(urls, "caller", natsconn.Option(), nats.ReconnectBufSize(-1))
	until(ctx, 30*time.Second, "the extensions are in a caller's catalog", func() {
		for _, id := range extensions {
			if e, _, ok := f.catalog.Tool(toolOf(id)); !ok || !e.State.Available {
				fail("%s is missing", id)
			}
		}
	})
	return mesh.NewClient(f.nc, mesh.ClientOptions{Catalog: f.catalog, Schemas: schema.Compile})
}

func toolOf(id string) string { return "ext_" + id + "_echo" }

// row prints the values of a row. A limit that the median, as it is printed, does not keep is marked.
func (p *performance) row(name string, values series, format, must, aim, how string) {
	text := fmt.Sprintf(format, values.median())
	sign, number, limited := strings.Cut(must, " ")
	bound, err := strconv.ParseFloat(number, 64)
	shown, err2 := strconv.ParseFloat(text, 64)
	if limited && (err != nil || err2 != nil || sign == "≥" && shown < bound || sign == "≤" && shown > bound) {
		must += ", missed"
	}
	p.table.row(name, "**"+text+"**", values.spread(format), must, aim, how)
}

// calls measures the latency of a lone caller and the throughput of many, with small and large messages. The limits are
// those of docs/performance.md: of the ratio, and of the bridge's processor time for a call where there is one.
func (p *performance) calls(ctx context.Context) {
	for _, row := range []struct {
		name                   string
		callers, size          int
		child                  string
		must, aim, cpu, cpuAim string
	}{
		{"latency alone ÷ S, 256 B", 1, 256, "json", "≤ 1.40", "1.15", "", ""},
		{"latency alone ÷ S, 256 B", 1, 256, "echo", "≤ 1.30", "1.10", "", ""},
		{"latency alone ÷ S, 16 KiB", 1, 16 << 10, "json", "≤ 1.30", "1.10", "", ""},
		{"latency alone ÷ S, 16 KiB", 1, 16 << 10, "echo", "≤ 1.30", "1.10", "", ""},
		{"throughput of 64 callers ÷ T, 256 B", 64, 256, "json", "≥ 0.65", "0.80", "≤ 8", "5"},
		{"throughput of 64 callers ÷ T, 256 B", 64, 256, "echo", "≥ 0.82", "0.92", "", ""},
		{"throughput of 64 callers ÷ T, 16 KiB", 64, 16 << 10, "json", "≥ 0.55", "0.75", "≤ 70", "45"},
		{"throughput of 64 callers ÷ T, 16 KiB", 64, 16 << 10, "echo", "≥ 0.65", "0.85", "", ""},
	} {
		name := row.name + ", " + row.child + " child"
		if !p.only.MatchString(name) {
			continue
		}
		c := p.newComparison(ctx, row.callers, row.size, row.child, p.client)
		self, server, bridge := os.Getpid(), p.servers[0].pid(), p.programs["bridge-bench"].pid()
		c.ofProduct.pids = []int{self, server, bridge, p.child(ctx, "bench", row.child), p.programs["registry"].pid()}
		c.ofBare.pids = []int{self, server, p.programs["micro"].pid()}
		c.measure(p, row.child)
		p.row(name, c.ratios, "%.2f", row.must, row.aim, c.String())
		cells := []string{name}
		for i := range 5 {
			cells = append(cells, c.ofProduct.each(i))
		}
		p.costs = append(p.costs, append(cells, c.ofBare.each(0), c.ofBare.each(1), c.ofBare.each(2)))
		if row.cpu != "" {
			what := strings.TrimPrefix(row.name, "throughput of 64 callers ÷ T, ")
			p.row("bridge's own µs of CPU a call, 64 callers, "+what+", json child", series{must(strconv.ParseFloat(c.ofProduct.each(2), 64))}, "%.1f", row.cpu, row.cpuAim, "")
		}
	}
}

// halfLoad measures the tail at half of the peak load, with callers that call at their own times.
func (p *performance) halfLoad(ctx context.Context) {
	const name = "p99 ÷ p50 at half of the peak load, 256 B, json child"
	if !p.wants(name) {
		return
	}
	const callers = 64
	op := call(ctx, p.client, "json", 256)
	var tails, rates, medians series
	for range p.rounds {
		peak := measure(0, callers, p.span, op).Rate()
		r := measure(peak/2, callers, 2*p.span, op)
		tails = append(tails, float64(r.Quantile(0.99))/float64(r.Quantile(0.5)))
		rates, medians = append(rates, r.Rate()), append(medians, micros(r.Quantile(0.5)))
	}
	p.row(name, tails, "%.1f", "≤ 8", "4", fmt.Sprintf("%.0f /s, p50 %.0f µs", rates.median(), medians.median()))
}

// up starts extctl up for the extensions in a directory of the stage, and waits for the note with its address and
// password, which it writes when NATS listens.
func (p *performance) up(ctx context.Context, dir, data string) (url string, up *process) {
	data = filepath.Join(p.dir, data)
	up = p.start("up", "extctl", p.env, "up", filepath.Join(p.dir, dir), "--listen", fmt.Sprintf("127.0.0.1:%d", freePorts(1)[0]), "--data", data, "--log-level", "error")
	var note storelock.Info
	until(ctx, 10*time.Second, "the address of extctl up", func() {
		check(json.Unmarshal(must(os.ReadFile(storelock.NotePath(daemon.StoreDir(data)))), &note))
	})
	return note.URLWithPassword(), up
}

// embedded measures latency where server, registry and bridge are one process: extctl up.
func (p *performance) embedded(ctx context.Context) {
	for i, row := range [][]string{{"json", "≤ 1.0", "0.80"}, {"echo", "≤ 0.85", "0.70"}} {
		name := "embedded (extctl up) latency ÷ S, 256 B, " + row[0] + " child"
		if !p.only.MatchString(name) {
			continue
		}
		url, up := p.up(ctx, "ext", fmt.Sprint("data-", i))
		c := p.newComparison(ctx, 1, 256, row[0], p.caller(ctx, url))
		c.measure(p, row[0])
		up.end()
		p.row(name, c.ratios, "%.2f", row[1], row[2], c.String())
	}
}

const largeSize = 25_000_000

// largeAnswer measures an answer of many chunks.
func (p *performance) largeAnswer(ctx context.Context) {
	const name = "MB/s of an answer of 25 MB, streaming caller"
	if !p.wants(name) {
		return
	}
	const fresh = 5 // the first answers use memory of four processes for the first time
	var all series
	for range fresh + p.rounds {
		began := time.Now()
		if answer := must(p.client.Call(ctx, toolOf("large"), json.RawMessage("{}"))); len(answer) != largeSize {
			fail("the large answer has %d bytes", len(answer))
		}
		all = append(all, largeSize/1e6/time.Since(began).Seconds())
	}
	p.row(name, all[fresh:], "%.0f", "≥ 150", "the broker's", fmt.Sprintf("the first %d answers, in fresh memory, are not counted: %.0f to %.0f MB/s",
		fresh, slices.Min(all[:fresh]), slices.Max(all[:fresh])))
}

const slowTakes = 5 * time.Second // for a call of the slow extension

// slowNeighbour measures a fast tool alone, and while many calls wait at another extension of its bridge.
func (p *performance) slowNeighbour(ctx context.Context) {
	const name = "p99 of a fast tool with 200 five-second calls waiting on its neighbour ÷ without"
	if !p.wants(name) {
		return
	}
	const slowCalls = 200
	fast, slow, span := call(ctx, p.client, "echo", 256), call(ctx, p.client, "slow", 256), min(3*time.Second, 5*p.span)
	var ratios, alone, busy series
	for range min(p.rounds, 5) {
		without := measure(0, 1, span, fast)
		var waiting sync.WaitGroup
		results := make(chan error, slowCalls)
		for range slowCalls {
			waiting.Go(func() { results <- slow() }) // ends with its call; waited for below
		}
		pause(ctx, time.Second) // until they run
		with := measure(0, 1, span, fast)
		if n := len(results); n > 0 {
			fail("%d slow calls ended during the measurement", n)
		}
		waiting.Wait()
		for range slowCalls {
			check(<-results)
		}
		a, b := micros(without.Quantile(0.99)), micros(with.Quantile(0.99))
		alone, busy, ratios = append(alone, a), append(busy, b), append(ratios, b/a)
	}
	p.row(name, ratios, "%.2f", "≤ 1.2", "1.05", fmt.Sprintf("p99 %.0f µs without, %.0f µs with", alone.median(), busy.median()))
}

// firstAnswer sends requests until one is answered.
func (p *performance) firstAnswer(ctx context.Context, nc *nats.Conn, subject string) {
	data := request(256)
	until(ctx, 20*time.Second, "an answer on "+subject, func() { must(nc.Request(subject, data, time.Second)) })
}

// lone starts a bridge with one extension, which have the same name.
func (p *performance) lone(ctx context.Context, name string) *process {
	bridge := p.startBridge(name, name, p.env...)
	p.firstAnswer(ctx, p.nc, prefix.RPC(name))
	return bridge
}

// firstCalls measures the time from the start of a program to the first answered call, without the time that the
// child takes by itself.
func (p *performance) firstCalls(ctx context.Context) {
	const embedded, external = "ms from start to first call beyond the child's own start-up, embedded", "ms from start to first call beyond the child's own start-up, external server"
	if !p.wants(embedded, external) {
		return
	}
	p.manifest("solo", "solo", "echo")
	var child, ext, emb series
	for i := range p.rounds {
		began := time.Now()
		pipe := startPipe(p.self, "echo")
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
	p.row(embedded, emb, "%.1f", "≤ 60", "12", how+"; a new data directory each time")
	p.row(external, ext, "%.1f", "≤ 25", "8", how)
}

// bridgeMemory measures a bridge with one child: idle, and under 64 callers.
func (p *performance) bridgeMemory(ctx context.Context) {
	const idle, peak = "MB of a bridge with one idle child", "MB of a bridge with one child, peak under 64 callers"
	if !p.wants(idle, peak) {
		return
	}
	p.manifest("lone", "lone", "echo")
	bridge := p.lone(ctx, "lone")
	defer bridge.end()
	pause(ctx, 5*time.Second) // what the start needed is released
	now, _ := memory(bridge.pid())
	resetPeak(bridge.pid())
	measure(0, 64, 5*time.Second, func() error {
		_, err := p.client.CallExt(ctx, "lone", "tools/echo", arguments(256))
		return err
	})
	_, most := memory(bridge.pid())
	p.row(idle, series{now}, "%.1f", "≤ 22", "14", "resident; 5 s after its first call")
	p.row(peak, series{most}, "%.1f", "≤ 32", "20", "resident, at most; 256 B for 5 s")
}

// tiny is a child that answers initialize and then waits, with its pipes open.
const tiny = `read -r line; id=${line#*'"id":'}; id=${id%%[,\}]*}
printf '{"jsonrpc":"2.0","id":%s,"result":{"server_version":"1","tools":[{"name":"echo"}],"hooks":[]}}\n' "$id"
exec cat`

// idleFleet measures what many idle extensions cost their bridge.
func (p *performance) idleFleet(ctx context.Context) {
	memoryRow, cpuRow := fmt.Sprintf("MB of a bridge with %d idle extensions", p.idle), fmt.Sprintf("%% of one core for %d idle extensions", p.idle)
	if !p.wants(memoryRow, cpuRow) {
		return
	}
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
	idle := use(bridge, func() { pause(ctx, 20*time.Second) })
	mb, _ := memory(bridge.pid())
	must, aim := "≤ 150", "100"
	if p.idle != 1000 {
		must, aim = "", ""
	}
	p.row(memoryRow, series{mb}, "%.1f", must, aim, fmt.Sprintf("without the children; all were ready %.1f s after the start", ready.Seconds()))
	p.row(cpuRow, series{100 * idle.share()}, "%.2f", "≤ 2", "", "the bridge, over 20 s")
}
