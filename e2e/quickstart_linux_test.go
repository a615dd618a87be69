package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestQuickstart follows the README: one command starts the examples, another terminal uses them, a killed child is
// restarted, and Ctrl-C ends all processes.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	env := []string{"XDG_DATA_HOME=" + home, "XDG_STATE_HOME=" + home, "XDG_CONFIG_HOME=" + home, "HOME=" + home}
	examples, err := filepath.Abs("../examples/extensions")
	if err != nil {
		t.Fatal(err)
	}
	// hello only needs a shell. textkit is gated if there is no Python.
	mesh := start(t, env, program(t, "extctl"), "up", filepath.Join(examples, "hello"), filepath.Join(examples, "textkit"), "--listen", "127.0.0.1:0")
	mesh.waitFor(t, "Ctrl-C stops everything")
	url := urlOf(t, env)
	if plain := between(mesh.output(), "NATS listens on ", ","); !strings.HasPrefix(url, "nats://extmesh:") || !strings.HasSuffix(url, "@"+strings.TrimPrefix(plain, "nats://")) {
		t.Errorf("the URL of %s is %s", plain, url)
	}

	var list struct {
		SchemaVersion int    `json:"schema_version"`
		CatalogID     string `json:"catalog_id"`
		Extensions    []struct {
			ID        string
			State     string
			Available bool
			Instances []struct{ Restarts int }
		}
	}
	listed := func() {
		t.Helper()
		out, stderr, code := extctl(t, url, "list", "--json")
		if code != 0 || json.Unmarshal([]byte(out), &list) != nil {
			t.Fatalf("list: exit %d, %s%s", code, out, stderr)
		}
	}
	if listed(); list.SchemaVersion != 1 || list.CatalogID == "" || len(list.Extensions) != 2 || list.Extensions[0].ID != "hello" || !list.Extensions[0].Available {
		t.Errorf("list: %+v", list)
	}
	var tools struct {
		Tools []struct {
			Name, Extension, Tool string
			InputSchema           json.RawMessage `json:"input_schema"`
		}
	}
	out, stderr, code := extctl(t, url, "tools", "--ext", "hello", "--json")
	if code != 0 || json.Unmarshal([]byte(out), &tools) != nil || len(tools.Tools) != 2 {
		t.Errorf("tools: exit %d, %s%s", code, out, stderr)
	}

	greet := func() (string, int) {
		out, _, code := extctl(t, url, "call", "ext_hello_greet", "name=Ada")
		return strings.TrimSpace(out), code
	}
	if got, code := greet(); code != 0 || got != `{"greeting":"Hello, Ada!"}` {
		t.Errorf("greet: exit %d, %s", code, got)
	}
	const fixed = `{"z":9007199254740993,"a":1e400, "one":1.0,"html":"<&>","escapes":"\u00e9\/\"\\\t\ud83d\ude00","raw":"é😀","empty":{ }}`
	if out, _, code := extctl(t, url, "call", "ext_hello_fixed"); code != 0 || strings.TrimSuffix(out, "\n") != fixed {
		t.Errorf("fixed: exit %d\n have %s\n want %s", code, out, fixed)
	}

	// The catalog is readable with a plain NATS request.
	m, err := connect(t, url).Request("$JS.API.DIRECT.GET.KV_ext_catalog.$KV.ext_catalog.spec.hello", nil, 20*time.Second)
	if err != nil || !strings.Contains(string(m.Data), `"ext_hello_greet"`) {
		t.Errorf("spec.hello: %s, %v", m.Data, err)
	}

	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"call", "ext_hello_gret"}, 1, "ext_hello_greet"},
		{[]string{"call", "ext_hello_greet", "Ada"}, 2, "key=value"},
		{[]string{"call", "ext_hello_greet", "{"}, 2, "JSON"},
		{[]string{"list", "--server", "nats://127.0.0.1:1"}, 13, "127.0.0.1:1"},
	} {
		if _, stderr, code := extctl(t, url, tt.args...); code != tt.code || !strings.Contains(stderr, tt.want) {
			t.Errorf("extctl %v: exit %d, want %d and %q: %s", tt.args, code, tt.code, tt.want, stderr)
		}
	}

	pid := childOf(t, mesh.cmd.Process.Pid, "hello.sh", home)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// A call waits for a restart for one second. On a busy machine a restart can take longer; the call then fails with
	// exit code 10.
	eventually(t, time.Minute, "a call succeeds after kill -9", func() bool {
		got, code := greet()
		if code != 0 && code != 10 || code == 0 && got != `{"greeting":"Hello, Ada!"}` {
			t.Errorf("greet after kill -9: exit %d, %s", code, got)
		}
		return code == 0
	})
	eventually(t, time.Minute, "the catalog shows the restart", func() bool {
		listed()
		return list.Extensions[0].Instances[0].Restarts == 1 && list.Extensions[0].Available
	})

	mesh.cmd.Process.Signal(os.Interrupt)
	select {
	case <-mesh.done:
	case <-time.After(limitFor(6 * time.Second)):
		t.Fatal("Ctrl-C does not stop it")
	}
	if mesh.err != nil {
		t.Errorf("extctl up ended with %v", mesh.err)
	}
	eventually(t, time.Minute, "no child is left", func() bool { return len(processes(t, "hello.sh", home)) == 0 })
}

// urlOf returns the output of extctl url with the environment env.
func urlOf(t *testing.T, env []string) string {
	t.Helper()
	cmd := exec.Command(program(t, "extctl"), "url")
	cmd.Env = append(append(os.Environ(), "NATS_URL="), env...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func between(s, before, after string) string {
	_, s, _ = strings.Cut(s, before)
	s, _, _ = strings.Cut(s, after)
	return s
}

// processes lists the processes with text in their command line and home in their environment, because other tests run the
// same examples on the same machine.
func processes(t *testing.T, text, home string) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || !strings.Contains(strings.ReplaceAll(string(line), "\x00", " "), text) || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err == nil && strings.Contains(string(env), home) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// childOf returns the child of parent with text in its command line and home in its environment.
func childOf(t *testing.T, parent int, text, home string) int {
	t.Helper()
	for _, pid := range processes(t, text, home) {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if fields[1] == strconv.Itoa(parent) {
			return pid
		}
	}
	t.Fatalf("process %d has no child %q", parent, text)
	return 0
}
