package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
)

// testChild is this binary run as a child process, in one of the modes of the fault table.
type testChild struct {
	in    *bufio.Reader
	out   io.Writer // standard output, one write per message
	mcp   bool
	offer func() string // the tools, as a JSON array

	mu sync.Mutex
}

// runTestChild is the main function of a child process. It returns when the input ends.
func runTestChild(mode string) {
	if run, ok := helpers[mode]; ok {
		run()
		return
	}
	for _, f := range append(slices.Concat(faults(), stops), soaked) {
		if f.mode == mode && f.child != nil {
			k := &testChild{in: bufio.NewReaderSize(os.Stdin, 1<<20), out: os.Stdout, mcp: f.mcp}
			k.offer = func() string { return toolList(f.mcp, append([]string{"echo"}, f.tools...)...) }
			f.child(k)
			return
		}
	}
	fmt.Fprintf(os.Stderr, "unknown E2E_MODE %q\n", mode)
	os.Exit(2)
}

// helpers are the processes that test children start, and the well-behaved extension next to each fault.
var helpers = map[string]func(){
	"healthy": func() {
		k := &testChild{in: bufio.NewReader(os.Stdin), out: os.Stdout, offer: func() string { return toolList(false, "echo") }}
		k.serve(nil)
	},
	// A grandchild that ignores all signals except SIGKILL.
	"stays": func() {
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
		for {
			time.Sleep(time.Hour)
		}
	},
	// The first half of a daemon's double fork.
	"forks": func() { spawn("stays", true) },
}

// spawn starts this binary in another mode with the standard streams of this process, in a new session if daemon.
func spawn(mode string, daemon bool) {
	exe, err := os.Executable()
	if err != nil {
		fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "E2E_MODE=child:"+mode)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: daemon}
	if err := cmd.Start(); err != nil {
		fatal(err)
	}
	if mode == "forks" {
		cmd.Wait()
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}

func toolList(mcp bool, names ...string) string {
	schema := "input_schema"
	if mcp {
		schema = "inputSchema"
	}
	var b strings.Builder
	for i, name := range names {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"name":%q,"description":"does %s","%s":{"type":"object"}}`, name, name, schema)
	}
	return "[" + b.String() + "]"
}

// message is a message from the bridge.
type message struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  json.RawMessage
}

// next reads a message. It returns false at the end of the input and on the shutdown notification.
func (k *testChild) next() (m message, ok bool) {
	for {
		line, err := k.in.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			m = message{}
			if err := json.Unmarshal(line, &m); err != nil {
				fatal(fmt.Errorf("the bridge sent %.200q: %w", line, err))
			}
			return m, m.Method != "shutdown"
		}
		if err != nil {
			return m, false
		}
	}
}

// tool returns the local name of the tool that m calls, and its arguments; "" if m is not a tool call.
func (m message) tool() (name string, args json.RawMessage) {
	if m.Method == "tools/call" {
		var p struct {
			Name      string
			Arguments json.RawMessage
		}
		json.Unmarshal(m.Params, &p)
		return p.Name, p.Arguments
	}
	name, ok := strings.CutPrefix(m.Method, "tools/")
	if !ok || name == "list" {
		return "", nil
	}
	return name, m.Params
}

// arg returns one member of the arguments as raw JSON.
func (m message) arg(name string) json.RawMessage {
	_, args := m.tool()
	var all map[string]json.RawMessage
	json.Unmarshal(args, &all)
	return all[name]
}

// write writes text unchanged to standard output.
func (k *testChild) write(text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	io.WriteString(k.out, text)
}

func (k *testChild) result(m message, result string) {
	k.write(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + result + "}\n")
}

func (k *testChild) fail(m message, code int, text string) {
	k.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`+"\n", m.ID, code, text))
}

func (k *testChild) notify(method, params string) {
	k.write(`{"jsonrpc":"2.0","method":"` + method + `","params":` + params + "}\n")
}

// initialize answers the request initialize.
func (k *testChild) initialize(m message) {
	if k.mcp {
		k.result(m, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"test-child","version":"1"}}`)
		return
	}
	k.result(m, `{"server_version":"1","tools":`+k.offer()+`,"hooks":[]}`)
}

// serve answers requests until the input ends: the functions in do, by tool or method name; otherwise initialize, ping,
// tools/list, and the tool echo, which returns its arguments.
func (k *testChild) serve(do map[string]func(m message)) {
	for {
		m, ok := k.next()
		if !ok {
			return
		}
		k.handle(m, do)
	}
}

func (k *testChild) handle(m message, do map[string]func(m message)) {
	name, args := m.tool()
	switch f := do[m.Method]; {
	case f != nil:
		f(m)
	case name != "" && do[name] != nil:
		do[name](m)
	case name == "echo":
		k.result(m, string(args))
	case m.Method == "initialize":
		k.initialize(m)
	case m.Method == "ping":
		k.result(m, "{}")
	case m.Method == "tools/list":
		k.result(m, `{"tools":`+k.offer()+`}`)
	case len(m.ID) > 0 && m.Method != "":
		k.fail(m, -32601, "no method "+m.Method)
	}
}

// only returns a map with a single tool or method.
func only(name string, f func(m message)) map[string]func(m message) {
	return map[string]func(m message){name: f}
}

// runNumber counts the runs of this extension, from 1. Each process calls it once.
func runNumber() int {
	file := filepath.Join(os.Getenv("EXTMESH_STATE_DIR"), "runs")
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		fatal(err)
	}
	n, _ := strconv.Atoi(string(data)) // 0 if there is no file
	n++
	if err := os.WriteFile(file, []byte(strconv.Itoa(n)), 0o600); err != nil {
		fatal(err)
	}
	return n
}

// killSelf sends SIGKILL to its own process.
func killSelf() {
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// hang blocks for ever.
func hang() {
	for {
		time.Sleep(time.Hour)
	}
}

// pause is how a test child lets time pass.
func pause(d time.Duration) { time.Sleep(d) }

// runTestBridge is the main function of a bridge in a separate process, with the extensions of the directory E2E_DIR. It
// ends on SIGTERM.
func runTestBridge() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	defer bridge.Watchdog(log)()
	nc, err := nats.Connect(os.Getenv("NATS_URL"), nats.Timeout(time.Minute))
	if err != nil {
		fatal(err)
	}
	settings := config.Default()
	if file := filepath.Join(os.Getenv("E2E_DIR"), "extensions.yaml"); exists(file) {
		if settings, err = bridge.Settings(file, nil, log); err != nil {
			fatal(err)
		}
	}
	settings.SearchPaths = []string{filepath.Join(os.Getenv("E2E_DIR"), "ext")}
	settings.Watch.Enabled = false
	b := bridge.New(nc, bridge.Config{Name: os.Getenv("E2E_NAME"), Version: "1.0.0", Settings: settings,
		StateDir: filepath.Join(os.Getenv("E2E_DIR"), "state"), Logger: log})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := b.Run(ctx); err != nil {
		fatal(err)
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
