package main

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// table is what was measured, printed as it comes and kept for the document.
type table struct {
	opt    options
	rows   []string
	costs  []string
	header string
}

func newTable(o options) *table {
	t := &table{opt: o}
	t.header = fmt.Sprintf("%s, %s/%s, %d processors (%s%s), %s%s; medians of %d interleaved rounds of %s, the lowest and the highest behind them; headers on with every call: Ext-Timeout, Ext-Call-Id, Ext-Stream; none with the bare requests\n",
		time.Now().UTC().Format("2006-01-02"), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), processor(), polling(), runtime.Version(), environment(o.env), o.rounds, o.span)
	fmt.Println(t.header)
	fmt.Println(strings.Join(tableHead, "\n"))
	return t
}

var tableHead = []string{"| | measured | spread | must | aim | |", "|---|---|---|---|---|---|"}

// wants reports whether a row was asked for.
func (t *table) wants(name string) bool { return strings.Contains(name, t.opt.only) }

// row adds one, with the verdict on its limit.
func (t *table) row(name string, v []float64, format, must, aim, how string) {
	m := median(v)
	spread := ""
	if len(v) > 1 {
		spread = fmt.Sprintf(format+" – "+format, slices.Min(v), slices.Max(v))
	}
	verdict := must
	if ok, known := holds(m, must, format); known && !ok {
		verdict += ", missed"
	}
	line := fmt.Sprintf("| %s | **"+format+"** | %s | %s | %s | %s |", name, m, spread, verdict, aim, how)
	t.rows = append(t.rows, line)
	fmt.Println(line)
}

// holds reports whether a figure, as it is printed, keeps to a limit like "≤ 1.40".
func holds(v float64, limit, format string) (ok, known bool) {
	var bound, shown float64
	sign, number, found := strings.Cut(limit, " ")
	if !found {
		return false, false
	}
	if _, err := fmt.Sscan(number, &bound); err != nil {
		return false, false
	}
	if _, err := fmt.Sscan(fmt.Sprintf(format, v), &shown); err != nil || math.IsNaN(v) {
		return false, false
	}
	if sign == "≥" {
		return shown >= bound, true
	}
	return shown <= bound, true
}

// spent adds where the processor time of a row went.
func (t *table) spent(name string, r *comparison) {
	line := "| " + name + " |"
	for _, p := range []string{"caller", "server", "bridge", "child", "registry", "bare caller", "bare server", "bare service"} {
		line += fmt.Sprintf(" %.1f |", r.cpu(p))
	}
	t.costs = append(t.costs, line)
}

// text is the whole as Markdown.
func (t *table) text() string {
	lines := append([]string{t.header}, tableHead...)
	return strings.Join(append(append(lines, t.rows...), "", t.processes()), "\n")
}

// processes is the table of where processor time went.
func (t *table) processes() string {
	if len(t.costs) == 0 {
		return ""
	}
	lines := []string{"µs of processor time for each call, by process; on the right, for each bare request:", "",
		"| | caller | server | bridge | child | registry | bare: caller | server | service |", "|---|---|---|---|---|---|---|---|---|"}
	return strings.Join(append(lines, t.costs...), "\n") + "\n"
}

// processor is the model of this machine's, as far as the system tells.
func processor() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// polling says how long an idle processor of a virtual machine waits before it halts, where that can be known: waking
// one that has halted is most of what a lone call costs.
func polling() string {
	ns, err := os.ReadFile("/sys/module/haltpoll/parameters/guest_halt_poll_ns")
	if err != nil {
		return ""
	}
	return ", guest_halt_poll_ns=" + strings.TrimSpace(string(ns))
}

func environment(bridge []string) string {
	if len(bridge) == 0 {
		return ""
	}
	return "; the bridge with " + strings.Join(bridge, " ")
}
