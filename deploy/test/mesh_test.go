// Package deploy_test checks deploy/, the Dockerfile and docker-compose.yml with the libraries that parse such files, and
// runs their commands as processes. It is a separate module, so that extmesh does not depend on these libraries.
//
//	cd deploy/test && go test ./...
package deploy_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const root = "../.."

var update = flag.Bool("update", false, "regenerate deploy/k8s/nats-config.yaml")

// binaries builds them once, as the Dockerfile does.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "extmesh-deploy-")
	if err != nil {
		return "", err
	}
	built = dir
	cmd := exec.Command("go", "build", "-o", dir+"/", "./cmd/registry", "./cmd/stdio-bridge", "./cmd/extctl", "./examples/services/primes")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	cmd = exec.Command("go", "build", "-o", filepath.Join(dir, "nats-server"), "github.com/nats-io/nats-server/v2")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return dir, nil
})

var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

func binary(t *testing.T, name string) string {
	t.Helper()
	dir, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A process is one process of a deployment: a container, or a service of systemd.
type process struct {
	name    string // unique
	program string // registry, stdio-bridge, extctl, primes or nats-server, or the path of another program
	args    []string
	env     map[string]string
}

// checkArgs lets the program parse its arguments; with --version it then exits.
func (u process) checkArgs(t *testing.T) {
	t.Helper()
	if u.program == "nats-server" {
		return // TestCommands runs it
	}
	ask := "--version"
	if u.program == "extctl" {
		ask = "--help"
	}
	cmd := exec.Command(binary(t, u.program), append(slices.Clone(u.args), ask)...)
	cmd.Env = append(os.Environ(), u.environ()...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %s does not take %q: %v\n%s", u.name, u.program, u.args, err, out)
	}
}

func (u process) environ() (env []string) {
	for _, k := range slices.Sorted(maps.Keys(u.env)) {
		env = append(env, k+"="+u.env[k])
	}
	return env
}

var natsUser = regexp.MustCompile(`(?s)user: "([^"]+)",? password: \$([A-Z0-9_]+)`)

// users returns the users of roles.conf, with the variables of their passwords.
func users(t *testing.T) map[string]string {
	out := map[string]string{}
	for _, m := range natsUser.FindAllStringSubmatch(read(t, "deploy/nats/roles.conf"), -1) {
		out[m[1]] = m[2]
	}
	if len(out) < 6 {
		t.Fatalf("roles.conf has the users %v", out)
	}
	return out
}

// natsContext is a context of the nats command, which contains a program's credentials.
type natsContext struct {
	URL, User, Password string
	InboxPrefix         string `json:"inbox_prefix"`
}

func parseContext(t *testing.T, text string) (c natsContext) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Errorf("%q is no context of the nats command: %v", text, err)
	}
	return c
}

// login returns the URL with the user and password of a context.
func (c natsContext) login() string {
	return strings.Replace(c.URL, "//", "//"+c.User+":"+c.Password+"@", 1)
}

// runMesh runs units as processes on this machine. swap replaces what exists only in the real deployment: host names and
// directories. It waits until ids are ready, and calls one of them.
func runMesh(t *testing.T, units []process, swap map[string]string, operator string, ids ...string) {
	t.Helper()
	var pairs []string
	for _, k := range slices.Backward(slices.Sorted(maps.Keys(swap))) { // the longer of two with the same beginning first
		pairs = append(pairs, k, swap[k])
	}
	r := strings.NewReplacer(pairs...)
	for _, u := range units {
		var args []string
		for _, a := range u.args {
			args = append(args, r.Replace(a))
		}
		env := map[string]string{}
		for k, v := range u.env {
			env[k] = r.Replace(v)
		}
		u.args, u.env = args, env
		run(t, u)
	}
	operator = r.Replace(operator)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	last := ""
	for deadline := time.Now().Add(2 * time.Minute); ; <-tick.C {
		var list struct {
			Extensions []struct {
				ID        string
				Available bool
			}
		}
		out, err := extctl(t, operator, "list", "--json")
		up := map[string]bool{}
		if err == nil && json.Unmarshal([]byte(out), &list) == nil {
			for _, x := range list.Extensions {
				up[x.ID] = x.Available
			}
		}
		if !slices.ContainsFunc(ids, func(id string) bool { return !up[id] }) {
			break
		}
		last = fmt.Sprint(up, err, out)
		if time.Now().After(deadline) {
			t.Fatalf("not all of %v are ready: %s", ids, last)
		}
	}
	if out, err := extctl(t, operator, "call", "ext_primes_factor", "n=91"); err != nil || strings.TrimSpace(out) != "[7,13]" {
		t.Errorf("call: %s, %v", out, err)
	}
}

func extctl(t *testing.T, url string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(binary(t, "extctl"), append(args, "--inbox-prefix", "_INBOX.operator")...)
	cmd.Env = append(os.Environ(), "NATS_URL="+url)
	out, err := cmd.Output()
	return string(out), err
}

// run starts a unit. It is stopped at the end of the test.
func run(t *testing.T, u process) {
	t.Helper()
	path := u.program
	if !filepath.IsAbs(path) {
		path = binary(t, path)
	}
	cmd := exec.Command(path, u.args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, u.environ()...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // ends with the process
		cmd.Wait()
		close(done)
	}()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Errorf("%s does not stop", u.name)
			cmd.Process.Kill()
			<-done
		}
		if t.Failed() {
			t.Logf("output of %s (%s %s):\n%s", u.name, u.program, strings.Join(u.args, " "), &log)
		}
	})
}

// port returns a free port. A connection that the listener closed first leaves the port in TIME_WAIT for a minute: meanwhile
// the kernel does not assign it to another process that listens on port 0.
func port(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	caller, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()
	callee, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	callee.Close()
	_, p, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// extensions returns a directory with the example that only needs a shell.
func extensions(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "hello"), os.DirFS(filepath.Join(root, "examples/extensions/hello"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// natsFiles copies deploy/nats to a new directory, with replacements.
func natsFiles(t *testing.T, swap ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	files, err := filepath.Glob(filepath.Join(root, "deploy/nats/*.conf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no configurations: %v", err)
	}
	for _, f := range files {
		text := strings.NewReplacer(swap...).Replace(read(t, "deploy/nats", filepath.Base(f)))
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(f)), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
