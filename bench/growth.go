package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// growth draws how costs grow: with the load, with the callers, with the extensions of a bridge.
func (s *stage) growth(o options) error {
	if err := os.MkdirAll(o.plots, 0o755); err != nil {
		return err
	}
	for _, draw := range []func(options) (plot, string, error){s.againstLoad, s.againstCallers, s.againstExtensions} {
		p, file, err := draw(o)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := os.WriteFile(filepath.Join(o.plots, file), []byte(p.svg()), 0o644); err != nil {
			return err
		}
		fmt.Println("drew", filepath.Join(o.plots, file))
	}
	return nil
}

// againstLoad is the latency at shares of the peak load.
func (s *stage) againstLoad(o options) (plot, string, error) {
	p := plot{title: "Latency against load, 256 B, echo child, 64 callers", x: "calls a second", y: "µs", series: make([]series, 2)}
	p.series[0].name, p.series[1].name = "p50", "p99"
	op := call(s.client, "echo", arguments(256))
	peak, err := measure(64, 4*o.span, op)
	if err != nil {
		return p, "latency.svg", err
	}
	for _, share := range []float64{0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9} {
		var rate, p50, p99 []float64
		for range min(o.rounds, 5) {
			r, err := paced(64, share*peak.Rate(), 2*o.span, op)
			if err != nil {
				return p, "latency.svg", err
			}
			rate, p50, p99 = append(rate, r.Rate()), append(p50, us(r.Quantile(0.5))), append(p99, us(r.Quantile(0.99)))
		}
		p.series[0].add(median(rate), median(p50))
		p.series[1].add(median(rate), median(p99))
	}
	return p, "latency.svg", nil
}

// againstCallers is the processor time of a call, by process, with ever more callers.
func (s *stage) againstCallers(o options) (plot, string, error) {
	names := []string{"caller", "server", "bridge", "child"}
	p := plot{title: "Processor time of a call against callers, 256 B, echo child", x: "callers", y: "µs", logX: true}
	for _, n := range names {
		p.series = append(p.series, series{name: n})
	}
	few := o
	few.rounds = min(o.rounds, 5)
	for callers := 1; callers <= 256; callers *= 2 {
		r, err := s.compare(few, callers, 256, "echo")
		if err != nil {
			return p, "callers.svg", err
		}
		for i, n := range names {
			p.series[i].add(float64(callers), r.cpu(n))
		}
	}
	return p, "callers.svg", nil
}

// againstExtensions is a bridge's memory with ever more idle extensions.
func (s *stage) againstExtensions(o options) (plot, string, error) {
	p := plot{title: "A bridge's resident memory against idle extensions", x: "extensions", y: "MB", series: []series{{name: "bridge"}}}
	for _, n := range []int{1, o.fleet / 10, o.fleet / 4, o.fleet / 2, o.fleet} {
		c, err := s.idle(max(1, n))
		if err != nil {
			return p, "extensions.svg", err
		}
		p.series[0].add(float64(max(1, n)), c.mb)
	}
	return p, "extensions.svg", nil
}
