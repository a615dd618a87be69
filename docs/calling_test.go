package docs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/extmesh/extmesh/internal/freeport"
)

// programs builds the programs once, and returns their directory.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "extmesh-docs-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	cmd := exec.Command("go", "build", noSymbols, "-o", dir+string(filepath.Separator), "./cmd/...", "./examples/services/primes")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	return dir, os.Symlink(exe, filepath.Join(dir, "nats-server"))
})

// noSymbols halves the time of linking.
const noSymbols = "-ldflags=-s -w"

var builtIn string

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "nats-server" {
		natsServer(os.Args[1:])
		return
	}
	_ = flag.Set("test.parallel", "4") // much of their time the tests wait; the command line overrides it
	code := m.Run()
	if builtIn != "" {
		os.RemoveAll(builtIn)
	}
	os.Exit(code)
}

// natsServer is the main function of nats-server.
func natsServer(args []string) {
	o, err := server.ConfigureOptions(flag.NewFlagSet("nats-server", flag.ExitOnError), args, server.PrintServerAndExit, nil, nil)
	if err != nil {
		server.PrintAndDie(err.Error())
	}
	srv, err := server.NewServer(o)
	if err != nil {
		server.PrintAndDie(err.Error())
	}
	srv.ConfigureLogger()
	srv.Start()
	srv.WaitForShutdown()
}

// background runs a program until the test ends.
func background(t *testing.T, env []string, name string, args ...string) *strings.Builder {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(), env...)
	out := new(strings.Builder)
	log := &lockedWriter{to: out}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // however it ends
		if t.Failed() {
			t.Logf("output of %s:\n%s", filepath.Base(name), out)
		}
	})
	return out
}

type lockedWriter struct {
	mu sync.Mutex
	to *strings.Builder
}

func (w *lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}

// startDesk starts the mesh of calling-tools.md: extctl up with the examples, and primes. It returns the address that extctl url
// prints.
func startDesk(t *testing.T) (dir, url string) {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	address := freeport.Addr(t)
	home := t.TempDir()
	env := []string{"XDG_DATA_HOME=" + home, "XDG_STATE_HOME=" + home, "XDG_CONFIG_HOME=" + home}
	background(t, env, filepath.Join(dir, "extctl"), "up", "../examples/extensions/hello", "--listen", address)
	extctl := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "extctl"), args...)
		cmd.Env = append(append(os.Environ(), "NATS_URL="), env...)
		return cmd.Output()
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		if out, err := extctl("url"); url == "" && err == nil && bytes.Contains(out, []byte("@"+address)) {
			url = strings.TrimSpace(string(out))
			background(t, nil, filepath.Join(dir, "primes"), "--nats-url", url)
		}
		out, err := extctl("tools", "--json")
		if url != "" && err == nil && bytes.Contains(out, []byte("ext_hello_greet")) && bytes.Contains(out, []byte("ext_primes_count")) {
			return dir, url
		}
		if time.Now().After(deadline) {
			t.Fatalf("no tools: %s, %v", out, err)
		}
	}
}

// TestCalling runs the callers of calling-tools.md. The one in Node needs npm and is tested by e2e with -tags interop.
func TestCalling(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"python3", "sh", "jq"} {
		need(t, program)
	}
	dir, url := startDesk(t)
	commands := map[string]func(file string) []string{
		"go":     func(file string) []string { return buildOver(t, "./call", file) },
		"sh":     func(file string) []string { return []string{"sh", "-e", file} },
		"python": func(file string) []string { return []string{"python3", file} },
	}
	names := map[string]string{"go": "main.go", "sh": "call.sh", "python": "call.py"}
	want := map[string][]string{
		"go":     {"ext_hello_greet: [ext:hello] ", "Hello, Ada!", "The arguments are wrong: ", "progress: ", `{"primes":148933}`},
		"sh":     {"ext_hello_greet: [ext:hello] ", "Hello, Ada!", "Hello, Grace!", "Hello, Mary!", "not_found: ", "ext_hello_greet"},
		"python": {"ext_hello_greet - [ext:hello] ", "{'greeting': 'Hello, Ada!'}", "invalid_params: "},
	}
	found := 0
	for _, f := range fences(read(t, "calling-tools.md")) {
		if f.kind != "call" || f.lang == "js" {
			continue
		}
		found++
		t.Run(f.lang, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), names[f.lang])
			if err := os.WriteFile(file, []byte(f.text), 0o644); err != nil {
				t.Fatal(err)
			}
			command := commands[f.lang](file)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, command[0], command[1:]...)
			cmd.Env = append(os.Environ(), "NATS_URL="+url, "PATH="+dir+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, w := range want[f.lang] {
				if !bytes.Contains(out, []byte(w)) {
					t.Errorf("it does not print %q but\n%s", w, out)
				}
			}
		})
	}
	if found != len(commands) {
		t.Errorf("the page has %d of the %d languages", found, len(commands))
	}
}

// buildOver builds a Go program from a page as if it were the file here/main.go of this module, so that its imports are
// found.
func buildOver(t *testing.T, here, file string) []string {
	t.Helper()
	at, err := filepath.Abs(filepath.Join(here, "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{at: file}})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(file)
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "program")
	cmd := exec.CommandContext(t.Context(), "go", "build", noSymbols, "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, here)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return []string{binary}
}
