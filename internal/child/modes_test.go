//go:build linux

package child_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/leaks"
)

const modeVar = "CHILD_TEST_MODE"

// The modes in which the test binary runs as a child or grandchild.
var modes = map[string]func(args []string){
	"echo":        func([]string) { io.Copy(os.Stdout, os.Stdin) },
	"echo-stderr": func([]string) { io.Copy(os.Stderr, os.Stdin) },
	"exit": func(args []string) {
		fmt.Fprint(os.Stderr, strings.Join(args[1:], "\n"))
		code, _ := strconv.Atoi(args[0])
		os.Exit(code)
	},
	"self-kill": func([]string) {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	},
	"large-output": func([]string) { fmt.Print(strings.Repeat("x", 60000), "\nthe end\n") },
	"ignore-eof":   func([]string) { fmt.Println("up"); sleep() }, // to the end of its input
	"ignore-term": func([]string) {
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("up")
		sleep()
	},
	"stop": func([]string) {
		fmt.Println("up")
		ready()
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(time.Minute)
	},
	"close-stdout": func([]string) {
		os.Stdout.Close()
		io.Copy(io.Discard, os.Stdin)
	},
	"compute": func([]string) {
		ready()
		for n := 0; ; n++ {
			runtime.KeepAlive(n)
		}
	},
	"log": func([]string) {
		for {
			fmt.Fprintln(os.Stderr, "downloading")
			time.Sleep(time.Millisecond)
		}
	},
	"breed": func([]string) {
		exe, _ := os.Executable()
		for {
			c := exec.Command(exe)
			c.Env = append(os.Environ(), modeVar+"=exit")
			c.Run()
		}
	},
	"flood": flood,
	"flood-wait": func(args []string) {
		flood(args)
		io.Copy(io.Discard, os.Stdin)
	},
	"stderr": func(args []string) { fmt.Fprint(os.Stderr, strings.Join(args, "")) },
	"fork": func(args []string) { // starts a grandchild that inherits the pipes, and exits when that is up
		spawn(args, nil, os.Stdout)
	},
	"fork-wait": func(args []string) { // the same, but runs until the end of its input
		spawn(args, nil, os.Stdout)
		fmt.Println("up")
		io.Copy(io.Discard, os.Stdin)
	},
	"daemon": func(args []string) { // starts a child in a session of its own, without the pipes, and runs on
		spawn(args, &syscall.SysProcAttr{Setsid: true}, nil)
		fmt.Println("up")
		ready()
		io.Copy(io.Discard, os.Stdin)
	},
	"daemon-bare": func(args []string) { // like daemon, but with an empty environment
		os.Clearenv()
		spawn(args, &syscall.SysProcAttr{Setsid: true}, nil)
		fmt.Println("up")
		io.Copy(io.Discard, os.Stdin)
	},
	"headless": func([]string) { // runs on without its main thread
		go func() {
			headless := func() bool {
				stat, err := os.ReadFile("/proc/self/stat")
				return err != nil || strings.Contains(string(stat), ") Z ")
			}
			for !headless() {
				time.Sleep(time.Millisecond)
			}
			fmt.Println("up")
			sleep()
		}()
		syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
	},
	"daemon-exit": func(args []string) {
		spawn(args, &syscall.SysProcAttr{Setsid: true}, nil)
		fmt.Println("up")
		os.Stdin.Read(make([]byte, 1))
		os.Exit(1)
	},
	"env": func(args []string) {
		dir, _ := os.Getwd()
		fmt.Println(dir, os.Args[0])
		for _, k := range args {
			v, ok := os.LookupEnv(k)
			fmt.Printf("%s=%s %v\n", k, v, ok)
		}
	},
	"flags": func([]string) {
		for fd := range uintptr(3) {
			fl, _, _ := syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFL, 0)
			fmt.Println(fl&syscall.O_NONBLOCK != 0)
		}
	},
	"bridge": bridge,
}

func flood(args []string) {
	n, _ := strconv.Atoi(args[0])
	w := bufio.NewWriterSize(os.Stderr, 64<<10)
	for i := range n {
		fmt.Fprintf(w, "line %d %s\n", i, strings.Repeat("x", 80))
	}
	w.Flush()
}

// spawn starts this binary in another mode and waits until that process writes to its descriptor 3.
func spawn(args []string, attr *syscall.SysProcAttr, stdout *os.File) {
	exe, _ := os.Executable()
	r, w, _ := os.Pipe()
	c := exec.Command(exe, args[1:]...)
	c.Env = append(os.Environ(), modeVar+"="+args[0], "READY=1")
	c.SysProcAttr = attr
	c.ExtraFiles = []*os.File{w}
	if stdout != nil {
		c.Stdout, c.Stderr = stdout, os.Stderr
	}
	if err := c.Start(); err != nil {
		fmt.Println(err)
		os.Exit(99)
	}
	w.Close()
	r.Read(make([]byte, 1))
	r.Close()
}

// ready notifies the process that called spawn.
func ready() {
	if os.Getenv("READY") != "" {
		f := os.NewFile(3, "ready")
		f.Write([]byte{'\n'})
		f.Close()
	}
}

func sleep() {
	ready()
	time.Sleep(time.Minute)
}

// bridge runs children of its own, for a test that kills it.
func bridge(modes []string) {
	failed := func(err error) {
		fmt.Println(err)
		os.Exit(99)
	}
	stop, err := child.Guard(failed)
	if err != nil {
		failed(err)
	}
	defer stop()
	child.Subreaper()
	fmt.Println(child.MarkerPrefix())
	for _, m := range modes {
		if m == "no-cgroups" {
			child.WithoutCgroups()
			modes = slices.DeleteFunc(modes, func(s string) bool { return s == m })
		}
	}
	for _, m := range modes {
		args := strings.Fields(m)
		go child.Run(context.Background(), spec(args[0], args[1:]...), func(ctx context.Context, p *child.Process) error {
			bufio.NewReader(p.Stdout).ReadString('\n') // "up"
			fmt.Println("up")
			<-ctx.Done()
			return nil
		}) // ends with the process
	}
	io.Copy(io.Discard, os.Stdin)
}

func spec(mode string, args ...string) child.Spec {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return child.Spec{Command: exe, Args: args, Env: []string{
		modeVar + "=" + mode, "PATH=" + os.Getenv("PATH"),
		"GORACE=atexit_sleep_ms=0", // otherwise each child under -race takes a second to end
	}}
}

func init() {
	if strings.HasPrefix(os.Getenv(modeVar), "headless") {
		runtime.LockOSThread() // to the main thread
		runtime.GOMAXPROCS(2)  // one of which it occupies
	}
}

func TestMain(m *testing.M) {
	child.MaybeGuard()
	if mode := os.Getenv(modeVar); mode != "" {
		modes[mode](os.Args[1:])
		os.Exit(0)
	}
	_ = flag.Set("test.parallel", "8") // these tests wait; the command line overrides it
	leaks.Main(m, goleak.Cleanup(func(code int) {
		if pids := child.Survivors(); code == 0 && len(pids) > 0 {
			fmt.Println("still running after all tests:", pids)
			code = 1
		}
		os.Exit(code)
	}))
}
