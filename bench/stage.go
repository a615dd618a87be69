package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/mesh/schema"
)

// stage is everything that is running while the table is made.
type stage struct {
	self    string // this program
	bin     string // of the built programs
	dir     string
	url     string
	env     []string   // of the bridge, on top of this program's
	nc      *nats.Conn // of the bare requests, and of everything that is no call
	client  *mesh.Client
	plain   *mesh.Client  // on a connection without mesh.LowLatency
	catalog *mesh.Catalog // the client's

	natsd, micro, registry, bridge *exec.Cmd

	stop []func()
}

// set builds and starts everything.
func (s *stage) set() (err error) {
	if s.self, err = os.Executable(); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "extmesh-bench-"); err != nil {
		return err
	}
	s.stop = append(s.stop, func() { os.RemoveAll(s.dir) })
	s.bin = filepath.Join(s.dir, "bin") + string(filepath.Separator)
	build := exec.Command("go", "build", "-o", s.bin, "./cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as in the container images
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	if s.natsd, s.url, err = s.role("natsd"); err != nil {
		return err
	}
	if s.micro, _, err = s.role("micro"); err != nil {
		return err
	}
	for _, child := range []string{"json", "echo", "slow"} {
		if err := s.manifest("ext", child, child, s.self); err != nil {
			return err
		}
	}
	if s.registry, err = s.program("registry", nil); err != nil {
		return err
	}
	if s.bridge, err = s.startBridge("bench", "ext"); err != nil {
		return err
	}
	if s.nc, err = nats.Connect(s.url); err != nil {
		return err
	}
	s.stop = append(s.stop, s.nc.Close)
	if s.plain, _, err = s.dial(s.url); err != nil {
		return err
	}
	s.client, s.catalog, err = s.dial(s.url, mesh.LowLatency())
	return err
}

// dial makes a client as an agent has one, with a catalog that knows the children.
func (s *stage) dial(url string, opts ...nats.Option) (*mesh.Client, *mesh.Catalog, error) {
	nc, err := nats.Connect(url, append([]nats.Option{nats.ReconnectBufSize(-1), nats.MaxReconnects(-1)}, opts...)...)
	if err != nil {
		return nil, nil, err
	}
	s.stop = append(s.stop, nc.Close)
	catalog := mesh.NewCatalog(nc, mesh.CatalogOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { catalog.Run(ctx) }) // ends with ctx, in close
	s.stop = append(s.stop, func() { cancel(); wg.Wait() })
	wctx, done := context.WithTimeout(ctx, 30*time.Second)
	defer done()
	err = catalog.WaitFor(wctx, func(c *mesh.Catalog) bool {
		for _, child := range []string{"json", "echo", "slow"} {
			if e, _, ok := c.Tool("ext_" + child + "_echo"); !ok || !e.State.Available {
				return false
			}
		}
		return true
	})
	return mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog, Schemas: schema.Compile}), catalog, err
}

func (s *stage) close() {
	for i := len(s.stop) - 1; i >= 0; i-- {
		s.stop[i]()
	}
}

// role starts this program in another role and returns the first line it says.
func (s *stage) role(name string, env ...string) (*exec.Cmd, string, error) {
	cmd := exec.Command(s.self)
	cmd.Env = append(append(os.Environ(), "BENCH_ROLE="+name, "NATS_URL="+s.url), env...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, "", err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	s.stop = append(s.stop, func() { stdin.Close(); cmd.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	return cmd, strings.TrimSpace(line), err
}

// program starts one of ours; it ends with the stage.
func (s *stage) program(name string, env []string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command(filepath.Join(s.bin, name), append(args, "--log-level", "error")...)
	cmd.Env = append(append(os.Environ(), "NATS_URL="+s.url), env...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.stop = append(s.stop, func() { end(cmd) })
	return cmd, nil
}

// end asks a program to stop and waits until it has.
func end(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
	}
}

func (s *stage) startBridge(name, dir string) (*exec.Cmd, error) {
	return s.program("stdio-bridge", s.env, "--name", name, "--search-path", filepath.Join(s.dir, dir), "--state-dir", filepath.Join(s.dir, "state"))
}

// manifest makes an extension in a directory of the stage.
func (s *stage) manifest(dir, id, role, command string, args ...string) error {
	dir = filepath.Join(s.dir, dir, id)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = fmt.Sprintf("%q", a)
	}
	return os.WriteFile(filepath.Join(dir, "plugin.toml"), fmt.Appendf(nil, `
[plugin]
id = %q
version = "1.0.0"
[capabilities]
tools = ["echo", "big"]
[transport]
type = "stdio"
dialect = "ext"
command = %q
args = [%s]
env = { BENCH_ROLE = %q }
`, id, command, strings.Join(quoted, ", "), role), 0o644)
}
