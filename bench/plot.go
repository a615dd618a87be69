package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// plot is a line for each series, on axes that begin at zero (or at the first power of two, with logX).
type plot struct {
	title, x, y string
	logX        bool
	series      []series
}

type series struct {
	name   string
	points [][2]float64
}

func (s *series) add(x, y float64) { s.points = append(s.points, [2]float64{x, y}) }

const (
	plotWidth, plotHeight                    = 720.0, 400.0
	plotLeft, plotRight, plotTop, plotBottom = 70.0, 110.0, 40.0, 50.0
)

var plotColours = []string{"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e"}

// svg draws it.
func (p plot) svg() string {
	var maxX, maxY float64
	for _, s := range p.series {
		for _, q := range s.points {
			maxX, maxY = max(maxX, q[0]), max(maxY, q[1])
		}
	}
	topY := nice(maxY)
	px := func(v float64) float64 {
		share := v / max(maxX, 1e-9)
		if p.logX {
			share = math.Log2(max(v, 1)) / max(math.Log2(maxX), 1e-9)
		}
		return plotLeft + share*(plotWidth-plotLeft-plotRight)
	}
	py := func(v float64) float64 { return plotHeight - plotBottom - v/topY*(plotHeight-plotTop-plotBottom) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="%g" height="%g" fill="white"/>`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<text x="%g" y="22" font-size="15">%s</text>`+"\n", plotLeft, html.EscapeString(p.title))
	for i := range 6 {
		v := topY * float64(i) / 5
		fmt.Fprintf(&b, `<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`+"\n",
			plotLeft, plotWidth-plotRight, py(v), py(v), plotLeft-6, py(v)+4, short(v))
	}
	for _, v := range p.ticks(maxX) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`+"\n", px(v), plotHeight-plotBottom+18, short(v))
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">%s</text>`+"\n", (plotLeft+plotWidth-plotRight)/2, plotHeight-12, html.EscapeString(p.x))
	fmt.Fprintf(&b, `<text x="16" y="%g">%s</text>`+"\n", plotTop-6, html.EscapeString(p.y))
	for i, s := range p.series {
		var line []string
		for _, q := range s.points {
			line = append(line, fmt.Sprintf("%.1f,%.1f", px(q[0]), py(q[1])))
		}
		colour := plotColours[i%len(plotColours)]
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(line, " "), colour)
		fmt.Fprintf(&b, `<text x="%g" y="%g" fill="%s">%s</text>`+"\n", plotWidth-plotRight+10, plotTop+12+18*float64(i), colour, html.EscapeString(s.name))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (p plot) ticks(maxX float64) (out []float64) {
	if p.logX {
		for v := 1.0; v <= maxX; v *= 2 {
			out = append(out, v)
		}
		return out
	}
	step := nice(maxX) / 5
	for v := 0.0; v <= maxX; v += step {
		out = append(out, v)
	}
	return out
}

// nice is the next number of the kind that an axis ends with.
func nice(v float64) float64 {
	if v <= 0 {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if v <= m*p {
			return m * p
		}
	}
	return 10 * p
}

func short(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%gk", math.Round(v/100)/10)
	}
	return fmt.Sprintf("%g", math.Round(v*100)/100)
}
