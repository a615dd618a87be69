package bridge_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
)

var (
	sampleLine = regexp.MustCompile(`^([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? ([0-9.e+-]+|\+Inf|NaN)$`)
	headLine   = regexp.MustCompile(`^# (HELP|TYPE) ([a-z_]+) (.+)$`)
)

// exposition is the content of a /metrics page, by "name{labels}".
type exposition map[string]float64

// parseExposition checks that a page conforms to Prometheus's text format: the samples of a family follow its HELP and
// TYPE lines, no sample is repeated, and the buckets of histograms increase.
func parseExposition(t *testing.T, text string) exposition {
	t.Helper()
	samples, types := exposition{}, map[string]string{}
	family, helped := "", ""
	last := map[string]float64{} // by a histogram's labels without le
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if head := headLine.FindStringSubmatch(line); head != nil {
			switch {
			case head[1] == "HELP":
				helped = head[2]
			case types[head[2]] != "" || helped != head[2]:
				t.Errorf("%q: there is a family of the name, or no HELP in front", line)
			default:
				family, types[head[2]] = head[2], head[3]
			}
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("not a line of the text format: %q", line)
		}
		name, key := m[1], m[1]+"{"+m[2]+"}"
		value, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if _, twice := samples[key]; twice {
			t.Errorf("%q is there twice", key)
		}
		samples[key] = value
		if base, suffix, _ := cutLast(name, "_"); types[family] == "histogram" && base == family {
			of := regexp.MustCompile(`,?le="[^"]*"`).ReplaceAllString(m[2], "")
			switch {
			case suffix == "bucket" && value < last[of]:
				t.Errorf("%q: a bucket holds less than the one before", line)
			case suffix == "count" && value != last[of]:
				t.Errorf("%q: the last bucket holds %v", line, last[of])
			case suffix == "bucket":
				last[of] = value
			}
		} else if name != family {
			t.Errorf("%q stands in the family %s", line, family)
		}
		if strings.HasSuffix(family, "_total") != (types[family] == "counter") {
			t.Errorf("%s is a %s", family, types[family])
		}
	}
	return samples
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// TestMetrics reads the metrics of a bridge with three extensions: one that is called, one that crashes, and one with an
// unmet requirement.
func TestMetrics(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("called", `"yes"`, "")
	h.extension("crashes", `"'; kill -9 $$; r='"`, "")
	h.extension("gated", `"never"`, "[requires]\nbins = [\"no-such-program\"]\n")
	settings := config.Default()
	settings.SearchPaths = []string{filepath.Join(h.dir, "ext")}
	settings.Watch.Enabled = false
	twice := settings.Supervision
	twice.Replicas = 2
	settings.Entries = map[string]config.Entry{"called": {Supervision: twice, Gating: config.Skip}}
	b := bridge.New(h.nc, bridge.Config{Name: "b1", Version: "1.0.0", Settings: settings, StateDir: filepath.Join(h.dir, "state"),
		Logger: slog.New(slog.NewTextHandler(&h.log, nil))})
	page := func() exposition {
		var text strings.Builder
		b.WriteMetrics(&text)
		return parseExposition(t, text.String())
	}
	if before := page(); before[`extmesh_bridge_problems{kind="gated"}`] != 0 || len(before) != 2 {
		t.Errorf("before Run there is %v", before)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }() // ends with ctx
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "all extensions are ready", func() bool {
		p := page()
		return p[`extmesh_bridge_instances{extension="called",state="ready"}`] == 2 && p[`extmesh_bridge_instances{extension="crashes",state="ready"}`] == 1
	}, nil)
	ask := func(id, request string) {
		t.Helper()
		if _, err := h.nc.Request("ext."+id+".rpc", []byte(request), time.Minute); err != nil {
			t.Fatalf("%s: %v", request, err)
		}
	}
	for range 10 {
		ask("called", `{"jsonrpc":"2.0","id":1,"method":"tools/say"}`)
	}
	ask("called", `{"jsonrpc":"2.0","id":1,"method":"resources/list"}`)
	ask("called", `{"jsonrpc":"2.0","method":"tools/say"}`)
	ask("called", `not JSON`)
	ask("crashes", `{"jsonrpc":"2.0","id":1,"method":"tools/say"}`)
	want := map[string]float64{
		`extmesh_bridge_instances{extension="gated",state="gated"}`:                 1,
		`extmesh_bridge_instances{extension="called",state="failed"}`:               0,
		`extmesh_bridge_breakers{extension="called",state="closed"}`:                2,
		`extmesh_bridge_breakers{extension="called",state="open"}`:                  0,
		`extmesh_bridge_inflight_calls{extension="called"}`:                         0,
		`extmesh_bridge_calls_total{extension="called"}`:                            13,
		`extmesh_bridge_refusals_total{extension="called",kind="invalid_request"}`:  1,
		`extmesh_bridge_refusals_total{extension="called",kind="method_not_found"}`: 1,
		`extmesh_bridge_refusals_total{extension="called",kind="parse"}`:            1,
		`extmesh_bridge_refusals_total{extension="called",kind="overloaded"}`:       0,
		`extmesh_bridge_errors_total{extension="called",kind="timeout"}`:            0,
		`extmesh_bridge_errors_total{extension="crashes",kind="extension_exited"}`:  1,
		`extmesh_bridge_restarts_total{extension="crashes"}`:                        1,
		`extmesh_bridge_restarts_total{extension="called"}`:                         0,
		`extmesh_bridge_call_duration_seconds_count{extension="called"}`:            11, // what was admitted
		`extmesh_bridge_call_duration_seconds_bucket{extension="called",le="+Inf"}`: 11,
		`extmesh_bridge_call_duration_seconds_bucket{extension="crashes",le="300"}`: 1,
		`extmesh_bridge_skipped_total{extension="called",what="noise"}`:             0,
		`extmesh_bridge_problems{kind="gated"}`:                                     1,
	}
	var wrong []string
	eventually(t, "the metrics have the expected values", func() bool {
		p := page()
		wrong = nil
		for key, v := range want {
			if got, ok := p[key]; !ok || got != v {
				wrong = append(wrong, fmt.Sprintf("%s is %v, want %v", key, got, v))
			}
		}
		return len(wrong) == 0
	}, func() string { return strings.Join(wrong, "\n") })
	if sum := page()[`extmesh_bridge_call_duration_seconds_sum{extension="called"}`]; sum <= 0 || sum > 60 {
		t.Errorf("eleven calls took %v s", sum)
	}
}
