//go:build prometheus

package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// watched is a mesh that a real Prometheus watches with the shipped rules.
type watched struct {
	*testing.T
	programs map[string]*exec.Cmd // that run, by a name
	specs    map[string][]string  // their command lines
	web      map[string]string    // the HTTP addresses of the programs that Prometheus scrapes
	nats     string               // address of the NATS server
	api      string               // address of Prometheus
	door     string               // address of the MCP server
	proxy    *proxy               // between the second mesh's MCP server and NATS
	covered  map[string]bool      // alerts that have fired as they should
}

// start starts a program; stop ends it. The log of a program that is left at the end is printed if the test has failed.
func (w *watched) start(name string) {
	w.Helper()
	line := w.specs[name]
	cmd := exec.Command(line[0], line[1:]...)
	log, err := os.CreateTemp(w.TempDir(), name)
	if err != nil {
		w.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	w.programs[name] = cmd
	w.Cleanup(func() {
		if w.programs[name] == cmd {
			w.stop(name, syscall.SIGKILL)
		}
		if text, err := os.ReadFile(log.Name()); err == nil && w.Failed() {
			w.Logf("%v\n%s", line, text[max(0, len(text)-4000):])
		}
		log.Close()
	})
}

func (w *watched) stop(name string, s syscall.Signal) {
	w.Helper()
	cmd := w.programs[name]
	delete(w.programs, name)
	if err := cmd.Process.Signal(s); err != nil {
		w.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}

// A cause makes one alert fire. It is called again and again until the alert fires: ctx ends then.
type cause func(ctx context.Context)

// await waits until these alerts have fired, each for its cause, which is nil if the caller has made it; without any, it waits
// until no alert is firing.
func (w *watched) await(what string, causes map[string]cause) {
	w.Helper()
	began, fired := time.Now(), map[string]bool{}
	stop := map[string]func(){}
	for name, cause := range causes {
		stop[name] = w.repeat(cause)
		defer stop[name]()
	}
	var firing []string
	for ; time.Since(began) < time.Minute; time.Sleep(200 * time.Millisecond) {
		firing = w.firing()
		missing := len(causes) == 0 && len(firing) > 0
		for _, name := range firing {
			fired[name] = true
		}
		for name := range causes {
			if fired[name] {
				stop[name]()
			}
			missing = missing || !fired[name]
		}
		if !missing {
			for name := range causes {
				w.covered[name] = true
			}
			w.Logf("%s: %v after %v", what, slices.Sorted(maps.Keys(fired)), time.Since(began).Round(100*time.Millisecond))
			return
		}
	}
	w.Fatalf("%s: %v fired, want %v; %v are firing", what, slices.Sorted(maps.Keys(fired)), slices.Sorted(maps.Keys(causes)), firing)
}

// repeat calls a cause until stop is called, which waits for the last call.
func (w *watched) repeat(f cause) (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		for tick := time.NewTicker(100 * time.Millisecond); f != nil && ctx.Err() == nil; {
			f(ctx)
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (w *watched) firing() (names []string) {
	w.Helper()
	var answer struct {
		Data struct {
			Alerts []struct {
				Labels map[string]string
				State  string
			}
		}
	}
	response, err := http.Get(w.api + "/api/v1/alerts")
	if err != nil {
		return []string{"Prometheus does not answer"} // it starts
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return []string{"Prometheus is not ready"}
	}
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			names = append(names, a.Labels["alertname"])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// until waits until a query has a result.
func (w *watched) until(query string) {
	w.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		response, err := http.Get(w.api + "/api/v1/query?query=" + url.QueryEscape(query))
		if err == nil {
			text, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err == nil && strings.Contains(string(text), `"value"`) {
				return
			}
		}
		if time.Now().After(deadline) {
			w.Fatalf("no result: %s", query)
		}
	}
}

func (w *watched) extctl(args ...string) error {
	out, err := exec.Command(binary(w.T, "extctl"), append(args, "--server", w.nats)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("extctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// must runs an extctl that is to succeed, until it does.
func (w *watched) must(args ...string) {
	w.Helper()
	err := w.extctl(args...)
	for deadline := time.Now().Add(time.Minute); err != nil; err = w.extctl(args...) {
		if time.Now().After(deadline) {
			w.Fatal(err)
		}
	}
}

// dashboards waits until each query of the dashboards has a result.
func (w *watched) dashboards(extension string) {
	w.Helper()
	files, err := filepath.Glob(filepath.Join(root, "deploy/monitoring/dashboards/*.json"))
	if err != nil {
		w.Fatal(err)
	}
	queries := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		var board struct {
			Panels []struct{ Targets []struct{ Expr string } }
		}
		if err == nil {
			err = json.Unmarshal(text, &board)
		}
		if err != nil {
			w.Fatal(file, err)
		}
		for _, p := range board.Panels {
			for _, t := range p.Targets {
				queries++
				w.until(strings.NewReplacer("$extension", extension, "$__rate_interval", "8s").Replace(t.Expr))
			}
		}
	}
	if queries < 20 {
		w.Errorf("the dashboards have %d queries", queries)
	}
}

// quick makes the times of a rule short: what takes minutes on a mesh takes seconds here.
func quick(rules string) string {
	rules = regexp.MustCompile(`for: \d+[sm]`).ReplaceAllString(rules, "for: 1s")
	return strings.NewReplacer("[5m]", "[8s]", "[15m]", "[12s]",
		"min(extmesh_catalog_age_seconds) > 30", "min(extmesh_catalog_age_seconds) > 5",
		"seconds_bucket[5m]))) > 10", "seconds_bucket[8s]))) > 1").Replace(rules)
}

// failing is an extension with four tools: "no" fails, "exit" ends the process, "noise" also prints two lines that are no
// messages, and "wait" takes two seconds.
const failing = `[plugin]
id = "failing"
version = "1.0.0"
[capabilities]
tools = ["no", "exit", "noise", "wait"]
[transport]
type = "stdio"
command = "sh"
args = ["-c", '''
tool() { echo "{\"name\":\"$1\",\"description\":\"Fails.\",\"input_schema\":{\"type\":\"object\"}}"; }
while read -r line; do
	id=${line#*\"id\":}; id=${id%%[,\}]*}
	r='"result":{}'
	case $line in
	*initialize*) r="\"result\":{\"server_version\":\"1\",\"tools\":[$(tool no),$(tool exit),$(tool noise),$(tool wait)],\"hooks\":[]}" ;;
	*tools/exit*) exit 3 ;;
	*tools/noise*) echo "starting"; echo "done" ;;
	*tools/wait*) sleep 2 ;;
	*tools/no*) r='"error":{"code":1,"message":"no"}' ;;
	esac
	echo "{\"jsonrpc\":\"2.0\",\"id\":$id,$r}"
done''']
`

// watch starts NATS, two registries, two bridges, an MCP server and Prometheus with the shipped files, in which addresses and
// times differ. The programs of a second, empty mesh do not run yet.
func watch(t *testing.T) *watched {
	dir := t.TempDir()
	for _, id := range []string{"failing", "exiting", "slow", "noisy"} {
		if err := os.MkdirAll(filepath.Join(dir, "ext", id), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, "ext", id, "plugin.toml"), strings.Replace(failing, `id = "failing"`, fmt.Sprintf("id = %q", id), 1))
	}
	writeFile(t, filepath.Join(dir, "extensions.yaml"), "extensions: {supervision: {base_backoff: 50ms, max_backoff: 50ms}, entries: {slow: {max_inflight: 1}}}")
	w := &watched{T: t, programs: map[string]*exec.Cmd{}, specs: map[string][]string{}, web: map[string]string{}, covered: map[string]bool{}}
	listen := func() string { return "127.0.0.1:" + port(t) }
	server := func(name string) (address string) {
		p := port(t)
		w.specs[name] = []string{binary(t, "nats-server"), "-a", "127.0.0.1", "-p", p, "-js", "-sd", filepath.Join(dir, name)}
		return "127.0.0.1:" + p
	}
	w.nats = "nats://" + server("nats")
	w.specs["nats without JetStream"] = w.specs["nats"][:5]
	other := server("other nats")
	w.proxy, w.door = newProxy(t, other), listen()
	config := read(t, "deploy/monitoring/prometheus.yml")
	config = strings.NewReplacer("15s", "500ms").Replace(config) + "\n  - job_name: other\n    static_configs: [{ targets: [\"registry-of-other:8080\", \"mcp-of-other:8080\"] }]\n"
	for name, line := range map[string][]string{
		"registry-0":        {"registry", "--server", w.nats, "--name", "registry-0", "--http"},
		"registry-1":        {"registry", "--server", w.nats, "--name", "registry-1", "--http"},
		"registry-of-other": {"registry", "--server", other, "--http"},
		"bridge-0": {"stdio-bridge", "--server", w.nats, "--name", "bridge-0", "--config", filepath.Join(dir, "extensions.yaml"),
			"--state-dir", filepath.Join(dir, "bridge-0"), "--search-path", filepath.Join(dir, "ext"), "--http"},
		"bridge-1":     {"stdio-bridge", "--server", w.nats, "--name", "bridge-1", "--state-dir", filepath.Join(dir, "bridge-1"), "--search-path", extensions(t), "--http"},
		"mcp":          {"extctl", "mcp", "--server", w.nats, "--tokens", tokens(t, "ada"), "--http", w.door, "--admin"},
		"mcp-of-other": {"extctl", "mcp", "--server", w.proxy.url, "--http", listen(), "--admin"},
	} {
		w.web[name] = listen()
		w.specs[name] = append(append([]string{binary(t, line[0])}, line[1:]...), w.web[name])
		config = strings.ReplaceAll(config, `"`+name+":8080", `"`+w.web[name])
	}
	writeFile(t, filepath.Join(dir, "prometheus.yml"), config)
	writeFile(t, filepath.Join(dir, "rules.yml"), quick(read(t, "deploy/monitoring/rules.yml")))
	address := listen()
	w.api = "http://" + address
	w.specs["prometheus"] = []string{"prometheus", "--config.file=" + filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path=" + filepath.Join(dir, "tsdb"), "--web.listen-address=" + address}
	for _, name := range []string{"nats", "registry-0", "registry-1", "bridge-0", "bridge-1", "mcp", "prometheus"} {
		w.start(name)
	}
	return w
}
