package daemon

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/calls"
)

// writeResources writes the standard metrics of a process, as far as the system provides them.
func writeResources(w io.Writer) {
	Family(w, "process_start_time_seconds", "gauge", "Start of the process, seconds since the epoch.")
	Sample(w, "process_start_time_seconds", float64(processStart.UnixMilli())/1000)
	for _, f := range []struct {
		name, typ, help string
		read            func() (float64, bool)
	}{
		{"process_cpu_seconds_total", "counter", "Processor time, without that of child processes.", processorTime},
		{"process_resident_memory_bytes", "gauge", "Resident memory.", residentMemory},
		{"process_virtual_memory_bytes", "gauge", "Virtual memory.", virtualMemory},
		{"process_open_fds", "gauge", "Open file descriptors.", openFiles},
		{"process_max_fds", "gauge", "Largest number of open file descriptors.", maxFiles},
	} {
		if v, ok := f.read(); ok {
			Family(w, f.name, f.typ, f.help)
			Sample(w, f.name, v)
		}
	}
}

// processStart is close enough to the process's start time for a metric.
var processStart = time.Now()

// Family writes the head of a metric family in Prometheus's text format; typ is counter, gauge, histogram or summary.
func Family(w io.Writer, name, typ, help string) {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(help), name, typ)
}

var labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// Sample writes one sample; labels are alternating names and values.
func Sample(w io.Writer, name string, value float64, labels ...string) {
	var b strings.Builder
	b.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		b.WriteString(map[bool]string{true: "{", false: ","}[i == 0])
		fmt.Fprintf(&b, `%s="%s"`, labels[i], labelEscapes.Replace(labels[i+1]))
	}
	if len(labels) > 1 {
		b.WriteByte('}')
	}
	fmt.Fprintf(w, "%s %s\n", b.String(), strconv.FormatFloat(value, 'g', -1, 64))
}

// Histogram writes the samples of a histogram; each bucket includes the ones before it.
func Histogram(w io.Writer, name string, d calls.Durations, labels ...string) {
	n := uint64(0)
	for i, count := range d.N {
		n += count
		le := "+Inf"
		if i < len(calls.Bounds) {
			le = strconv.FormatFloat(calls.Bounds[i].Seconds(), 'g', -1, 64)
		}
		Sample(w, name+"_bucket", float64(n), append(slices.Clone(labels), "le", le)...)
	}
	Sample(w, name+"_sum", d.Sum.Seconds(), labels...)
	Sample(w, name+"_count", float64(n), labels...)
}

// writeProcessMetrics writes the metrics that every program has.
func writeProcessMetrics(w io.Writer, nc *nats.Conn) {
	Family(w, "extmesh_build_info", "gauge", "1, with the program's version.")
	Sample(w, "extmesh_build_info", 1, "version", Version(), "goversion", runtime.Version())
	writeResources(w)
	Family(w, "go_goroutines", "gauge", "Number of goroutines.")
	Sample(w, "go_goroutines", float64(runtime.NumGoroutine()))
	up := 0.0
	if nc != nil {
		if nc.IsConnected() {
			up = 1
		}
		s := nc.Stats()
		for _, c := range []struct {
			name, help string
			value      uint64
		}{
			{"extmesh_nats_reconnects_total", "Reconnects to NATS.", s.Reconnects},
			{"extmesh_nats_in_messages_total", "Messages from NATS.", s.InMsgs},
			{"extmesh_nats_in_bytes_total", "Bytes from NATS.", s.InBytes},
			{"extmesh_nats_out_messages_total", "Messages to NATS.", s.OutMsgs},
			{"extmesh_nats_out_bytes_total", "Bytes to NATS.", s.OutBytes},
		} {
			Family(w, c.name, "counter", c.help)
			Sample(w, c.name, float64(c.value))
		}
	}
	Family(w, "extmesh_nats_connected", "gauge", "1 while connected to NATS.")
	Sample(w, "extmesh_nats_connected", up)
}
