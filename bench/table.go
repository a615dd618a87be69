package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// table prints a Markdown table row by row.
type table struct{ columns int }

// newTable prints the head of a table.
func newTable(columns ...string) *table {
	t := &table{len(columns)}
	t.row(columns...)
	fmt.Println("|" + strings.Repeat("---|", len(columns)))
	return t
}

// row prints one row; missing cells are empty.
func (t *table) row(cells ...string) {
	line := strings.Join(append(cells, make([]string, t.columns-len(cells))...), "\x00")
	fmt.Println("| " + strings.NewReplacer("|", "/", "\n", " ", "\x00", " | ").Replace(line) + " |")
}

// heading prints when, where and how the tables below it were measured. In a virtual machine that includes how long an
// idle processor polls before it halts: waking a halted one is most of the time of a lone call.
func heading(how string) {
	model := "unknown"
	cpus, _ := os.ReadFile("/proc/cpuinfo") // absent on other systems
	for line := range strings.Lines(string(cpus)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
		}
	}
	if ns, err := os.ReadFile("/sys/module/haltpoll/parameters/guest_halt_poll_ns"); err == nil {
		model += ", guest_halt_poll_ns=" + strings.TrimSpace(string(ns))
	}
	fmt.Printf("%s, %s/%s, %d processors (%s), %s; %s\n\n",
		time.Now().UTC().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), model, runtime.Version(), how)
}

// step prints on standard error what is measured now.
func step(what string) { fmt.Fprintln(os.Stderr, "bench:", time.Now().Format(time.TimeOnly), what) }

// series is one measured value for each round.
type series []float64

func (s series) median() float64 { return slices.Sorted(slices.Values(s))[len(s)/2] }

// spread is the lowest and the highest value, or nothing for a single one.
func (s series) spread(format string) string {
	if len(s) < 2 {
		return ""
	}
	return fmt.Sprintf(format+" – "+format, slices.Min(s), slices.Max(s))
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// ms is a duration in milliseconds, or in seconds if it is long, with the digits that carry meaning.
func ms(d time.Duration) string {
	switch v := millis(d); {
	case v < 10:
		return fmt.Sprintf("%.1f ms", v)
	case v < 10_000:
		return fmt.Sprintf("%.0f ms", v)
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprint(n, " ", what, "s")
}
