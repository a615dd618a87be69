package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// report is the output, as it is printed and as it is written.
type report struct {
	b     strings.Builder
	began time.Time
}

func (r *report) text() string { return r.b.String() }

func (r *report) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	fmt.Print(text)
	r.b.WriteString(text)
}

// step says on standard error what is being measured, and for how long it has been.
func (r *report) step(what string) {
	if r.began.IsZero() {
		r.began = time.Now()
	}
	fmt.Fprintf(os.Stderr, "scale: %4.0f s  %s\n", time.Since(r.began).Seconds(), what)
}

func (r *report) heading(o options) {
	r.say("%s, %s/%s, %d processors, %s; one nats-server, one registry, everybody else in one process\n",
		time.Now().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
}

// table begins a table.
func (r *report) table(title string, columns ...string) {
	r.say("\n**%s**\n\n", strings.ToUpper(title[:1])+title[1:])
	r.row(columns...)
	r.row(slicesOf("---", len(columns))...)
}

func (r *report) row(cells ...string) { r.say("| %s |\n", strings.Join(cells, " | ")) }

func slicesOf(s string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%s %ss", grouped(n), what)
}

// grouped writes 10000 as 10,000.
func grouped(n int) string {
	s := fmt.Sprint(n)
	for at := len(s) - 3; at > 0; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

// ms is a time in milliseconds, as many digits of it as mean something.
func ms(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	switch {
	case v < 10:
		return fmt.Sprintf("%.1f ms", v)
	case v < 10_000:
		return fmt.Sprintf("%.0f ms", v)
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func us(d time.Duration) string {
	return fmt.Sprintf("%.1f µs", float64(d)/float64(time.Microsecond))
}

func percent(used, of time.Duration) string {
	return fmt.Sprintf("%.1f %% of a core", 100*used.Seconds()/of.Seconds())
}
