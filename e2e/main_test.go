// Package e2e tests the programs as an operator runs them: real processes, a real NATS server, real children.
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

// TestMain runs this binary in the mode of E2E_MODE: as a NATS server that can be killed, as a bridge, as a child, or, if
// it is empty, as the tests.
func TestMain(m *testing.M) {
	child.MaybeGuard()
	switch mode := os.Getenv("E2E_MODE"); {
	case mode == "natsd":
		natsd()
		return
	case mode == "bridge":
		runTestBridge()
		return
	case mode == "service":
		runTestService()
		return
	case strings.HasPrefix(mode, "child:"):
		runTestChild(strings.TrimPrefix(mode, "child:"))
		return
	case mode != "":
		fmt.Fprintf(os.Stderr, "unknown E2E_MODE %q\n", mode)
		os.Exit(2)
	}
	// Most of these tests wait for a child or a timeout, so more of them than processors can run in parallel.
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0))))
	}
	os.Setenv("FAULT_TOKEN", hostSecret) // for the manifests of newSharedMesh, whose tests are parallel
	state, err := os.MkdirTemp("", "state")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Setenv("XDG_STATE_HOME", state) // of bridges without --state-dir
	code := m.Run()
	os.RemoveAll(state)
	if dir := builtIn.Load(); dir != nil {
		os.RemoveAll(*dir)
	}
	os.Exit(code)
}

// natsd runs a NATS server with the configuration file E2E_CONFIG until it is killed, or shuts down after a signal.
func natsd() {
	o, err := server.ProcessConfigFile(os.Getenv("E2E_CONFIG"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s, err := server.NewServer(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s.ConfigureLogger()
	s.Start()
	s.WaitForShutdown()
}

// startNATS starts a NATS server with JetStream as a separate process, with further lines of configuration.
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
	return startServer(t, nil, config)
}

// startServer runs this binary as a NATS server, which writes its address to the directory of its configuration file.
func startServer(t testing.TB, env []string, config string) (url string, p *process) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p = start(t, append(env, "E2E_MODE=natsd", "E2E_CONFIG="+config), exe)
	ports := filepath.Join(filepath.Dir(config), fmt.Sprintf("%s_%d.ports", filepath.Base(exe), p.cmd.Process.Pid))
	eventually(t, time.Minute, "the server has written its address", func() bool {
		select {
		case <-p.done:
			t.Fatalf("the server ended: %v\n%s", p.err, p.output())
		default:
		}
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
	nc, err := nats.Connect(url, nats.Timeout(time.Minute), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
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

// start starts a program. If it still runs at the end of the test, it is killed.
func start(t testing.TB, env []string, name string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	return startCmd(t, cmd)
}

// startCmd is start for a command with further settings, such as a user.
func startCmd(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.WaitDelay = time.Minute
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

// limitFor returns the time limit for something that takes at most limit on an idle machine. Only the slow tests, which run
// on a quiet one, check times; otherwise the limit is for a program that hangs. Programs built with the race detector are
// several times slower, and take a second to exit.
func limitFor(limit time.Duration) time.Duration {
	switch {
	case !slowTests():
		return limit + time.Minute
	case raceEnabled:
		return 5 * limit
	}
	return 2 * limit
}

// slowTests reports whether the slow tests run, which CI does without the race detector and next to nothing else.
func slowTests() bool { return os.Getenv("EXTMESH_SLOW") != "" }

// nightlyTests reports whether the tests that take minutes run, too.
func nightlyTests() bool { return os.Getenv("EXTMESH_SLOW") == "nightly" }

// slowOnly skips a test that measures, that repeats on three servers what another test does on one, or that is a load for
// the machine, unless EXTMESH_SLOW is set.
func slowOnly(t *testing.T, why string) {
	t.Helper()
	if !slowTests() {
		t.Skip(why + "; set EXTMESH_SLOW=1")
	}
}

// nightlyOnly skips a test that takes minutes, unless EXTMESH_SLOW=nightly.
func nightlyOnly(t *testing.T, why string) {
	t.Helper()
	if !nightlyTests() {
		t.Skip(why + "; set EXTMESH_SLOW=nightly")
	}
}

// stop sends SIGTERM to the program and waits for its end.
func (p *process) stop(t *testing.T, within time.Duration) {
	t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(limitFor(within)):
		t.Errorf("%s still runs %s after SIGTERM", filepath.Base(p.cmd.Path), within)
	}
}

func (p *process) waitFor(t *testing.T, text string) {
	t.Helper()
	eventually(t, time.Minute, fmt.Sprintf("%s prints %q", filepath.Base(p.cmd.Path), text), func() bool {
		select {
		case <-p.done:
			t.Fatalf("%s ended: %v\n%s", filepath.Base(p.cmd.Path), p.err, p.output())
		default:
		}
		return strings.Contains(p.output(), text)
	})
}

// extctl runs one command of extctl and returns its output.
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

// eventually waits until cond returns true. Between two evaluations it waits four times as long as one takes, because some
// start a program: on a busy machine, polling must not take the processors from what it waits for.
func eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); ; {
		began := time.Now()
		if cond() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s still waiting: %s", within, what)
		}
		<-time.After(min(max(4*time.Since(began), 5*time.Millisecond), 500*time.Millisecond))
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
