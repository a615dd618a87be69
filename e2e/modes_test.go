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

// kid is this binary as a child process, in one of the modes of the fault table.
type kid struct {
	in    *bufio.Reader
	out   io.Writer // standard output, one write a message
	mcp   bool
	offer func() string // the tools, as a JSON array

	mu sync.Mutex
}

// beAKid is main in a child. It returns when the input ends.
func beAKid(mode string) {
	if run, ok := helpers[mode]; ok {
		run()
		return
	}
	for _, f := range append(slices.Concat(faults(), stops), soaked) {
		if f.mode == mode && f.kid != nil {
			k := &kid{in: bufio.NewReaderSize(os.Stdin, 1<<20), out: os.Stdout, mcp: f.mcp}
			k.offer = func() string { return toolList(f.mcp, append([]string{"echo"}, f.tools...)...) }
			f.kid(k)
			return
		}
	}
	fmt.Fprintf(os.Stderr, "unknown E2E_MODE %q\n", mode)
	os.Exit(2)
}

// helpers are what kids start in turn, and the neighbour of all faults.
var helpers = map[string]func(){
	"neighbour": func() {
		k := &kid{in: bufio.NewReader(os.Stdin), out: os.Stdout, offer: func() string { return toolList(false, "echo") }}
		k.serve(nil)
	},
	// A grandchild that stays, whatever it is told.
	"stays": func() {
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
		for {
			time.Sleep(time.Hour)
		}
	},
	// The first half of a daemon's double fork.
	"forks": func() { spawn("stays", true) },
}

// spawn starts this binary in another mode, with our standard streams, in a session of its own if daemon.
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

// message is what a kid is sent.
type message struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  json.RawMessage
}

// next reads a message. At the end of the input, or on shutdown, it reports false.
func (k *kid) next() (m message, ok bool) {
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

// tool is the own name of the tool that m calls, args its arguments; "" for anything else.
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

// arg is a member of the arguments, raw.
func (m message) arg(name string) json.RawMessage {
	_, args := m.tool()
	var all map[string]json.RawMessage
	json.Unmarshal(args, &all)
	return all[name]
}

// say writes text as it is.
func (k *kid) say(text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	io.WriteString(k.out, text)
}

func (k *kid) result(m message, result string) {
	k.say(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + result + "}\n")
}

func (k *kid) fail(m message, code int, text string) {
	k.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`+"\n", m.ID, code, text))
}

func (k *kid) notify(method, params string) {
	k.say(`{"jsonrpc":"2.0","method":"` + method + `","params":` + params + "}\n")
}

// hello answers initialize.
func (k *kid) hello(m message) {
	if k.mcp {
		k.result(m, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"kid","version":"1"}}`)
		return
	}
	k.result(m, `{"server_version":"1","tools":`+k.offer()+`,"hooks":[]}`)
}

// serve answers until the input ends: initialize, ping and tools/list by itself, the tool echo with its arguments,
// and what else is in do by the name of the tool or method.
func (k *kid) serve(do map[string]func(m message)) {
	for {
		m, ok := k.next()
		if !ok {
			return
		}
		k.handle(m, do)
	}
}

func (k *kid) handle(m message, do map[string]func(m message)) {
	name, args := m.tool()
	switch f := do[m.Method]; {
	case f != nil:
		f(m)
	case name != "" && do[name] != nil:
		do[name](m)
	case name == "echo":
		k.result(m, string(args))
	case m.Method == "initialize":
		k.hello(m)
	case m.Method == "ping":
		k.result(m, "{}")
	case m.Method == "tools/list":
		k.result(m, `{"tools":`+k.offer()+`}`)
	case len(m.ID) > 0 && m.Method != "":
		k.fail(m, -32601, "no method "+m.Method)
	}
}

// only is the map of one tool or method.
func only(name string, f func(m message)) map[string]func(m message) {
	return map[string]func(m message){name: f}
}

// life counts the lives of this extension, from 1.
func life() int {
	file := filepath.Join(os.Getenv("EXTMESH_STATE_DIR"), "lives")
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		fatal(err)
	}
	n, _ := strconv.Atoi(string(data)) // none is 0
	n++
	if err := os.WriteFile(file, []byte(strconv.Itoa(n)), 0o600); err != nil {
		fatal(err)
	}
	return n
}

// die is kill -9 by one's own hand.
func die() {
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// hang does nothing any more, for good.
func hang() {
	for {
		time.Sleep(time.Hour)
	}
}

// rest is time that a kid takes.
func rest(d time.Duration) { time.Sleep(d) }

// aBridge is main of a bridge in a process of its own, over the directory E2E_DIR. It ends when it is killed or told to.
func aBridge() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	defer bridge.Watchdog(log)()
	nc, err := nats.Connect(os.Getenv("NATS_URL"))
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
