package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestMetrics checks that a registry, a bridge and an MCP server serve every metric of docs/operations.md and of the dashboards, with the
// labels and the label values in the page's alerts: an alert on a series that does not exist never fires.
func TestMetrics(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	dashboards, err := filepath.Glob("../deploy/monitoring/dashboards/*.json")
	if err != nil || len(dashboards) != 2 {
		t.Fatalf("the dashboards are %v, %v", dashboards, err)
	}
	for _, path := range dashboards {
		text, err := os.ReadFile(path)
		if err != nil || !json.Valid(text) {
			t.Fatalf("%s: %v, or it is not JSON", path, err)
		}
		page = append(page, strings.ReplaceAll(string(text), `\"`, `"`)...)
	}
	url, _ := startNATS(t)
	env := []string{"NATS_URL=" + url}
	r := start(t, env, program(t, "registry"), "--http", "127.0.0.1:0")
	b := start(t, env, program(t, "stdio-bridge"), "--name", "b", "--search-path", writeWho(t, "b"), "--state-dir", t.TempDir(), "--http", "127.0.0.1:0")
	m := start(t, env, program(t, "extctl"), "mcp", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "info")
	registry, bridge := scrape(t, r, "extmesh_registry_leader 1\n"), scrape(t, b, `extmesh_bridge_instances{extension="who",state="ready"} 1`)
	mcp := scrape(t, m, `extmesh_mcp_view_tools{profile="default"} `)
	names := map[string]bool{}
	labels := regexp.MustCompile(`([a-z_]+)=~?"([^"]+)"`)
	for _, m := range regexp.MustCompile(`(extmesh_[a-z_]+)(?:\{([^}]+)\})?`).FindAllStringSubmatch(string(page), -1) {
		name := m[1]
		names[name] = true
		program, text := "registry", registry
		switch {
		case strings.HasPrefix(name, "extmesh_bridge_"):
			program, text = "bridge", bridge
		case strings.HasPrefix(name, "extmesh_mcp_"):
			program, text = "MCP server", mcp
		}
		if family := strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count"); !strings.Contains(text, "# TYPE "+family+" ") {
			t.Errorf("the %s does not serve %s", program, family)
		}
		for _, label := range labels.FindAllStringSubmatch(m[2], -1) {
			for value := range strings.SplitSeq(label[2], "|") {
				if strings.HasPrefix(value, "$") { // a variable of a dashboard
					continue
				}
				series := regexp.MustCompile(fmt.Sprintf(`\n%s\{[^}]*\b%s=%q`, name, label[1], value))
				if !series.MatchString(text) {
					t.Errorf("the %s does not serve %s{%s=%q}", program, name, label[1], value)
				}
			}
		}
	}
	if len(names) < 10 {
		t.Errorf("the page has %d metrics: it was not read", len(names))
	}
	for name := range names {
		// The metrics of a program's own process are served by every program.
		if strings.HasPrefix(name, "extmesh_nats_") && !strings.Contains(bridge, "# TYPE "+name+" ") {
			t.Errorf("the bridge does not serve %s", name)
		}
	}
	t.Logf("%d metrics on the page", len(names))
}

// scrape waits until the program is ready and its /metrics has this line, and returns it. Earlier, series are missing: a
// bridge is connected to NATS before its extensions are started.
func scrape(t *testing.T, p *process, line string) (text string) {
	t.Helper()
	at := p.serves(t)
	eventually(t, time.Minute, at+" is ready", func() bool { return get(t, "http://"+at+"/readyz") == "ok\n" })
	eventually(t, time.Minute, at+" serves "+line, func() bool {
		text = get(t, "http://"+at+"/metrics")
		return strings.Contains(text, line)
	})
	return text
}

// serves returns the address of a program's HTTP endpoints; the port was chosen by the program.
func (p *process) serves(t *testing.T) (at string) {
	t.Helper()
	line := regexp.MustCompile(`"?health endpoints"?.*?addr"?[=:]"?(127\.0\.0\.1:\d+)\b`)
	eventually(t, time.Minute, "its log has the address of the health endpoints", func() bool {
		m := line.FindStringSubmatch(p.output())
		if m != nil {
			at = m[1]
		}
		return m != nil
	})
	return at
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(body)
}
