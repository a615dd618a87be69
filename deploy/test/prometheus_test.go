//go:build prometheus

package deploy_test

import (
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
	nats     string               // address of the NATS server
	api      string               // address of Prometheus
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

// await waits until exactly these alerts have fired, at some time since the call, or with no names until none is firing.
func (w *watched) await(what string, names ...string) {
	w.Helper()
	began, fired := time.Now(), map[string]bool{}
	var firing []string
	for ; time.Since(began) < time.Minute; time.Sleep(200 * time.Millisecond) {
		firing = w.firing()
		for _, name := range firing {
			fired[name] = true
		}
		missing := slices.ContainsFunc(names, func(name string) bool { return !fired[name] })
		if !missing && (len(names) > 0 || len(firing) == 0) {
			w.Logf("%s: %v after %v", what, slices.Sorted(maps.Keys(fired)), time.Since(began).Round(100*time.Millisecond))
			return
		}
	}
	w.Fatalf("%s: %v fired, want %v; %v are firing", what, slices.Sorted(maps.Keys(fired)), names, firing)
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
	return strings.NewReplacer("[5m]", "[8s]", "[15m]", "[12s]", "min(extmesh_catalog_age_seconds) > 30", "min(extmesh_catalog_age_seconds) > 5").Replace(rules)
}

// failing is an extension with two tools: "no" fails, "exit" ends the process.
const failing = `[plugin]
id = "failing"
version = "1.0.0"
[capabilities]
tools = ["no", "exit"]
[transport]
type = "stdio"
command = "sh"
args = ["-c", '''
while read -r line; do
	id=${line#*\"id\":}; id=${id%%[,\}]*}
	case $line in
	*initialize*) r='"result":{"server_version":"1","tools":[{"name":"no","description":"Fails.","input_schema":{"type":"object"}},{"name":"exit","description":"Ends.","input_schema":{"type":"object"}}],"hooks":[]}' ;;
	*tools/exit*) exit 3 ;;
	*ping*) r='"result":{}' ;;
	*) r='"error":{"code":1,"message":"no"}' ;;
	esac
	echo "{\"jsonrpc\":\"2.0\",\"id\":$id,$r}"
done''']
`

// watch starts NATS, two registries, two bridges and Prometheus with the shipped files, in which addresses and times differ.
func watch(t *testing.T) *watched {
	dir := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("ext/failing/plugin.toml", failing)
	write("ext/exiting/plugin.toml", strings.Replace(failing, `id = "failing"`, `id = "exiting"`, 1))
	write("extensions.yaml", "extensions: {supervision: {base_backoff: 50ms, max_backoff: 50ms}}")
	listen := func() string { return "127.0.0.1:" + port(t) }
	config := read(t, "deploy/monitoring/prometheus.yml")
	config = strings.NewReplacer("scrape_interval: 15s", "scrape_interval: 500ms", "evaluation_interval: 15s", "evaluation_interval: 500ms").Replace(config)
	w := &watched{T: t, programs: map[string]*exec.Cmd{}, specs: map[string][]string{}}
	natsPort, web := port(t), listen()
	w.nats, w.api = "nats://127.0.0.1:"+natsPort, "http://"+web
	w.specs["nats"] = []string{binary(t, "nats-server"), "-a", "127.0.0.1", "-p", natsPort, "-js", "-sd", filepath.Join(dir, "nats")}
	w.specs["nats without JetStream"] = w.specs["nats"][:5]
	for _, name := range []string{"registry-0", "registry-1", "bridge-0", "bridge-1"} {
		address, program := listen(), "registry"
		var more []string
		if strings.HasPrefix(name, "bridge") {
			program = "stdio-bridge"
			more = []string{"--config", filepath.Join(dir, "extensions.yaml"), "--state-dir", filepath.Join(dir, name), "--search-path", filepath.Join(dir, "ext")}
		}
		if name == "bridge-1" {
			more[len(more)-1] = extensions(t)
		}
		w.specs[name] = append([]string{binary(t, program), "--server", w.nats, "--name", name, "--http", address}, more...)
		config = strings.ReplaceAll(config, name+":8222", address)
	}
	write("prometheus.yml", strings.ReplaceAll(config, "mcp:8222", "127.0.0.1:1"))
	write("rules.yml", quick(read(t, "deploy/monitoring/rules.yml")))
	w.specs["prometheus"] = []string{"prometheus", "--config.file=" + filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path=" + filepath.Join(dir, "tsdb"), "--web.listen-address=" + web}
	for _, name := range []string{"nats", "registry-0", "registry-1", "bridge-0", "bridge-1", "prometheus"} {
		w.start(name)
	}
	return w
}

// TestPrometheus breaks a mesh in the ways that the shipped alerts name, under a real Prometheus: each alert fires, and ends when
// the cause is gone.
func TestPrometheus(t *testing.T) {
	w := watch(t)
	for _, id := range []string{"failing", "exiting", "hello"} {
		w.must("wait", id, "--timeout", "5s")
	}
	w.until("max(extmesh_hosts{state=\"ready\"}) == 2") // before the first ping of a registry, a bridge has no state to lose
	w.await("a healthy mesh")

	w.stop("bridge-1", syscall.SIGKILL)
	for range 6 { // more than max_restarts: then it has failed
		if w.extctl("call", "exiting/exit") == nil || w.extctl("call", "failing/no") == nil {
			t.Error("a call succeeded")
		}
	}
	w.await("a bridge and a process are killed, a tool fails", "ExtmeshHostLost", "ExtmeshExtensionRestarts", "ExtmeshExtensionsDown", "ExtmeshInstancesFailed", "ExtmeshCallsFail")
	w.dashboards("failing")
	w.start("bridge-1")
	w.must("restart", "exiting")
	w.await("all is repaired")

	w.stop("registry-0", syscall.SIGKILL)
	w.stop("registry-1", syscall.SIGKILL)
	w.await("all registries are killed", "ExtmeshNoLeader", "ExtmeshTooFewRegistries")
	w.start("registry-0")
	w.start("registry-1")
	w.await("the registries are back")

	w.stop("nats", syscall.SIGKILL)
	w.await("NATS is killed", "ExtmeshNotConnected")
	w.start("nats without JetStream")
	w.await("NATS runs without JetStream", "ExtmeshNoJetStream", "ExtmeshCatalogOld")
	w.stop("nats without JetStream", syscall.SIGKILL)
	w.start("nats")
	w.await("JetStream is back")
}
