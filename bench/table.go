package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// stage is everything that is running while the table is made.
type stage struct {
	self    string // this program
	bin     string // of the built programs
	dir     string
	url     string
	nc      *nats.Conn // of the bare requests, and of everything that is no call
	client  *mesh.Client
	catalog *mesh.Catalog
	bridge  *exec.Cmd
	stop    []func()
}

// bench makes the table.
func bench(rounds int, span time.Duration, only string) error {
	s := &stage{}
	defer s.close()
	if err := s.set(); err != nil {
		return err
	}
	fmt.Printf("%s/%s, %d processors, %s; medians of %d interleaved rounds of %s; headers on: Ext-Timeout, Ext-Deadline, Ext-Call-Id, Ext-Stream\n\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), rounds, span)
	fmt.Println("| load | child | S or T: bare micro, bare pipe | product | ratio | p99/p50 | bridge µs of CPU a call |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, callers := range []int{1, 64} {
		for _, size := range []int{256, 16 << 10} {
			for _, child := range []string{"json", "echo"} {
				name := fmt.Sprintf("%d callers, %d B", callers, size)
				if only != "" && !strings.Contains(name+" "+child, only) {
					continue
				}
				row, err := s.row(rounds, span, callers, size, child)
				if err != nil {
					return fmt.Errorf("%s, %s child: %w", name, child, err)
				}
				fmt.Printf("| %s | %s | %s |\n", name, child, row)
			}
		}
	}
	return nil
}

// row measures one load against one child.
func (s *stage) row(rounds int, span time.Duration, callers, size int, child string) (string, error) {
	args := json.RawMessage(`{"text":"` + strings.Repeat("x", size-len(`{"text":""}`)) + `"}`)
	pipe, err := s.startPipe(child)
	if err != nil {
		return "", err
	}
	defer pipe.close()
	request := rpc.AppendRequest(nil, []byte("1"), "tools/echo", args)
	tool := "ext_" + child + "_echo"

	var bare, piped, product, p99, cpu, ratio []float64
	for range rounds {
		m, err := measure(callers, span, func() error {
			_, err := s.nc.Request("bare.echo", request, 10*time.Second)
			return err
		})
		if err != nil {
			return "", err
		}
		p, err := pipe.measure(callers, span, args)
		if err != nil {
			return "", err
		}
		before := cpuOf(s.bridge.Process.Pid)
		x, err := measure(callers, span, func() error {
			_, err := s.client.Call(context.Background(), tool, args)
			return err
		})
		if err != nil {
			return "", err
		}
		used := cpuOf(s.bridge.Process.Pid) - before
		cpu = append(cpu, float64(used.Microseconds())/float64(len(x.Took)))
		p99 = append(p99, float64(x.Quantile(0.99))/float64(x.Quantile(0.5)))
		if callers == 1 {
			bare, piped, product = append(bare, us(m.Quantile(0.5))), append(piped, us(p.Quantile(0.5))), append(product, us(x.Quantile(0.5)))
			ratio = append(ratio, us(x.Quantile(0.5))/(us(m.Quantile(0.5))+us(p.Quantile(0.5))))
		} else {
			bare, piped, product = append(bare, m.Rate()), append(piped, p.Rate()), append(product, x.Rate())
			ratio = append(ratio, x.Rate()/min(m.Rate(), p.Rate()))
		}
	}
	unit := "µs"
	if callers > 1 {
		unit = "/s"
	}
	return fmt.Sprintf("%.0f %s, %.0f %s | %.0f %s | **%.2f** | %.1f | %.1f", median(bare), unit, median(piped), unit,
		median(product), unit, median(ratio), median(p99), median(cpu)), nil
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// cpuOf is the processor time that a process has used.
func cpuOf(pid int) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	ticks := 0
	for _, s := range f[11:13] {
		n, err := strconv.Atoi(s)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
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
	if out, err := exec.Command("go", "build", "-o", s.bin, "./cmd/...").CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	if s.url, err = s.role("natsd"); err != nil {
		return err
	}
	if _, err = s.role("micro"); err != nil {
		return err
	}
	for _, child := range []string{"json", "echo"} {
		if err := s.manifest(child); err != nil {
			return err
		}
	}
	if _, err := s.program("registry"); err != nil {
		return err
	}
	if s.bridge, err = s.program("stdio-bridge", "--name", "bench", "--search-path", filepath.Join(s.dir, "ext"), "--state-dir", filepath.Join(s.dir, "state")); err != nil {
		return err
	}
	if s.nc, err = nats.Connect(s.url); err != nil {
		return err
	}
	s.stop = append(s.stop, s.nc.Close)
	calls, err := nats.Connect(s.url, nats.ReconnectBufSize(-1))
	if err != nil {
		return err
	}
	s.stop = append(s.stop, calls.Close)
	s.catalog = mesh.NewCatalog(calls, mesh.CatalogOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.catalog.Run(ctx) }) // ends with ctx, in close
	s.stop = append(s.stop, func() { cancel(); wg.Wait() })
	s.client = mesh.NewClient(calls, mesh.ClientOptions{Catalog: s.catalog})
	wctx, done := context.WithTimeout(ctx, 30*time.Second)
	defer done()
	return s.catalog.WaitFor(wctx, func(c *mesh.Catalog) bool {
		a, _, aok := c.Tool("ext_json_echo")
		b, _, bok := c.Tool("ext_echo_echo")
		return aok && bok && a.State.Available && b.State.Available
	})
}

func (s *stage) close() {
	for i := len(s.stop) - 1; i >= 0; i-- {
		s.stop[i]()
	}
}

// role starts this program in another role and returns the first line it says.
func (s *stage) role(name string) (string, error) {
	cmd := exec.Command(s.self)
	cmd.Env = append(os.Environ(), "BENCH_ROLE="+name, "NATS_URL="+s.url)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", err
	}
	s.stop = append(s.stop, func() { stdin.Close(); cmd.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	return strings.TrimSpace(line), err
}

func (s *stage) program(name string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command(filepath.Join(s.bin, name), append(args, "--log-level", "warn")...)
	cmd.Env = append(os.Environ(), "NATS_URL="+s.url)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.stop = append(s.stop, func() { cmd.Process.Signal(os.Interrupt); cmd.Wait() })
	return cmd, nil
}

func (s *stage) manifest(child string) error {
	dir := filepath.Join(s.dir, "ext", child)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "plugin.toml"), fmt.Appendf(nil, `
[plugin]
id = %q
version = "1.0.0"
[capabilities]
tools = ["echo"]
[transport]
type = "stdio"
command = %q
env = { BENCH_ROLE = %q }
`, child, s.self, child), 0o644)
}
