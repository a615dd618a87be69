package docs_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/freeport"
)

// TestRunningAFleet runs the commands of running-a-fleet.md in order, in a directory with the files of a checkout that they
// need.
func TestRunningAFleet(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the page uses a POSIX shell")
	}
	for _, program := range []string{"sh", "jq"} {
		need(t, program)
	}
	binaries, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	swap := strings.NewReplacer("127.0.0.1:4222", freeport.Addr(t), "127.0.0.1:8301", freeport.Addr(t),
		"127.0.0.1:8302", freeport.Addr(t), "127.0.0.1:7331", freeport.Addr(t))
	address := swap.Replace("127.0.0.1:4222")
	if err := os.CopyFS(filepath.Join(dir, "examples/extensions/hello"), os.DirFS("../examples/extensions/hello")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "deploy/nats"), 0o755); err != nil {
		t.Fatal(err)
	}
	config := strings.NewReplacer("0.0.0.0:4222", address, `"127.0.0.1:8222"`, `"127.0.0.1:-1"`)
	for _, name := range []string{"one.conf", "settings.conf", "roles.conf"} {
		text := config.Replace(read(t, "../deploy/nats/"+name))
		if err := os.WriteFile(filepath.Join(dir, "deploy/nats", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	script := "set -e\n"
	for _, f := range fences(read(t, "running-a-fleet.md")) {
		if f.kind == "fleet" {
			script += swap.Replace(f.text)
		}
	}
	// A person needs a while to reach step 5 and to kill a bridge. By then both bridges are ready and have answered the
	// registry: a bridge that has never answered is marked lost only after missed heartbeats.
	script = strings.Replace(script, "extctl wait", "until extctl hosts >/dev/null 2>&1; do sleep 0.1; done\nextctl wait", 1)
	script = strings.Replace(script, "kill -9", `until extctl show hello --json | jq -e '[.instances[] | select(.state == "ready")] | length == 2' >/dev/null &&
	extctl hosts --json | jq -e '[.hosts[] | select(.state == "ready")] | length == 2' >/dev/null; do sleep 0.1; done
kill -9`, 1)
	// On a loaded machine kill returns long before the threads of the bridge have ended. Its connection is open until then,
	// and a call that NATS gives it is lost.
	script = strings.Replace(script, "kill -9 $bridge_1\n", "kill -9 $bridge_1\nwait $bridge_1 || true\n", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+binaries+":"+os.Getenv("PATH"), "HOME="+dir)
	// The script leaves its programs running. The process group is killed at the end of the test.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	err = cmd.Run()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // some processes may have ended already
	out, readErr := os.ReadFile(log.Name())
	if err != nil || readErr != nil {
		t.Fatalf("the script ended with %v (%v)\n%s", err, readErr, out)
	}
	for _, want := range []string{"Hello, Ada!", "[71,839,1471,6857]", "Hello, Grace!", "Hello, Mary!", "bridge-0", "catalog 20", "/mcp\n", "ext_hello_greet"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it does not print %q but\n%s", want, out)
		}
	}
}
