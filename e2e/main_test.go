// Package e2e runs the programs as an operator would: real processes, a real NATS server, real children.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/child"
)

// TestMain makes this binary be what a test needs of it: a NATS server that can be killed, or a child.
func TestMain(m *testing.M) {
	child.MaybeGuard()
	switch mode := os.Getenv("E2E_MODE"); {
	case mode == "natsd":
		natsd()
		return
	case mode == "bridge":
		aBridge()
		return
	case strings.HasPrefix(mode, "child:"):
		beAKid(strings.TrimPrefix(mode, "child:"))
		return
	case mode != "":
		fmt.Fprintf(os.Stderr, "unknown E2E_MODE %q\n", mode)
		os.Exit(2)
	}
	// Most of these tests wait: for a child, for a time-out. More of them side by side than there are processors
	// cost nothing.
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if !asked {
		flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0))))
	}
	code := m.Run()
	if dir := builtIn.Load(); dir != nil {
		os.RemoveAll(*dir)
	}
	os.Exit(code)
}

// natsd is a NATS server with JetStream in a process of its own, configured by the file E2E_CONFIG.
func natsd() {
	o, err := server.ProcessConfigFile(os.Getenv("E2E_CONFIG"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	o.NoSigs = true
	s, err := server.NewServer(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s.ConfigureLogger()
	s.Start()
	select {} // until it is killed
}

// startNATS runs a NATS server in a process of its own, with further lines of configuration, and returns its URL.
func startNATS(t *testing.T, settings ...string) (url string, p *process) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "nats.conf")
	write(t, config, fmt.Sprintf(`
		listen: "127.0.0.1:-1"
		ports_file_dir: %q
		jetstream { store_dir: %q }
		ping_interval: "10s"
		ping_max: 2
		%s
	`, dir, filepath.Join(dir, "js"), strings.Join(settings, "\n")))
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p = start(t, []string{"E2E_MODE=natsd", "E2E_CONFIG=" + config}, exe)
	ports := filepath.Join(dir, fmt.Sprintf("%s_%d.ports", filepath.Base(exe), p.cmd.Process.Pid))
	eventually(t, time.Minute, "the server says where it listens", func() bool {
		data, err := os.ReadFile(ports)
		var listens struct {
			NATS []string `json:"nats"`
		}
		if err != nil || json.Unmarshal(data, &listens) != nil || len(listens.NATS) == 0 {
			return false
		}
		url = listens.NATS[0]
		return true
	})
	return url, p
}

func connect(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// process is a program that a test started.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error

	mu  sync.Mutex
	out bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// start starts a program; the test's end kills it if nothing else did.
func start(t testing.TB, env []string, name string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	return startCmd(t, cmd)
}

// startCmd is start for a program that needs more than arguments and an environment.
func startCmd(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("output of %s %s:\n%s", filepath.Base(cmd.Path), strings.Join(cmd.Args[1:], " "), p.output())
		}
	})
	return p
}

// patience is how long something may take that has to be over within limit on a machine with nothing else to do. What
// is built with the race detector is several times slower, and takes a second to exit.
func patience(limit time.Duration) time.Duration {
	if raceEnabled {
		return 5 * limit
	}
	return 2 * limit
}

// stop asks the program to end and waits until it has.
func (p *process) stop(t *testing.T, within time.Duration) {
	t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience(within)):
		t.Errorf("%s is still there %s after SIGTERM", filepath.Base(p.cmd.Path), within)
	}
}

func (p *process) waitFor(t *testing.T, text string) {
	t.Helper()
	eventually(t, time.Minute, fmt.Sprintf("%s says %q", filepath.Base(p.cmd.Path), text), func() bool {
		select {
		case <-p.done:
			t.Fatalf("%s ended: %v\n%s", filepath.Base(p.cmd.Path), p.err, p.output())
		default:
		}
		return strings.Contains(p.output(), text)
	})
}

// extctl runs one verb to its end.
func extctl(t *testing.T, url string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(t, "extctl"), args...)
	cmd.Env = append(os.Environ(), "NATS_URL="+url)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatalf("extctl %v: %v", args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// eventually waits until cond holds.
func eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(within); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("after %s still waiting: %s", within, what)
		}
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
