package docs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// A fence is one fenced block of a page: "```json beat" has the language json and the kind beat.
type fence struct {
	lang, kind, text string
	line             int
}

func read(t *testing.T, path string) string {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

func fences(page string) []fence {
	var out []fence
	open := false
	indent := ""
	for n, line := range strings.Split(page, "\n") {
		info, mark := strings.CutPrefix(strings.TrimLeft(line, " "), "```")
		switch {
		case mark && !open:
			open = true
			indent = line[:strings.Index(line, "`")]
			lang, kind, _ := strings.Cut(info, " ")
			out = append(out, fence{lang: lang, kind: kind, line: n + 1})
		case mark:
			open = false
		case open:
			out[len(out)-1].text += strings.TrimPrefix(line, indent) + "\n"
		}
	}
	return out
}

// TestExamples decodes each JSON example of the protocol into the type that the code uses for it. It fails for an unknown
// member, and for a kind of document without an example.
func TestExamples(t *testing.T) {
	types := map[string]func() any{
		"announce":  func() any { return new(wire.Announce) },
		"heartbeat": func() any { return new(heartbeat.Message) },
		"shutdown":  func() any { return new(wire.ShutdownNotice) },
		"spec":      func() any { return new(wire.Spec) },
		"state":     func() any { return new(wire.StateDoc) },
		"skill":     func() any { return new(wire.Skill) },
		"host":      func() any { return new(wire.Host) },
		"inventory": func() any { return new(wire.Inventory) },
		"hook":      func() any { return new(mesh.HookResult) },
		"meta": func() any {
			return new(struct {
				Agent   string `json:"agent_id"`
				Session string `json:"session_id"`
			})
		},
		"cancel": func() any {
			return new(struct {
				CallID string `json:"call_id"`
			})
		},
		"end": func() any {
			return new(struct {
				Length int `json:"length"`
			})
		},
	}
	seen := map[string]bool{}
	for _, f := range fences(read(t, "protocol.md")) {
		if f.lang != "json" {
			continue
		}
		seen[f.kind] = true
		text := []byte(f.text)
		if !json.Valid(text) {
			t.Errorf("line %d: not JSON", f.line)
		}
		switch f.kind {
		case "request", "response", "error", "progress":
			checkMessage(t, f)
			continue
		}
		into := types[f.kind]
		if into == nil {
			continue
		}
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.DisallowUnknownFields()
		if err := dec.Decode(into()); err != nil {
			t.Errorf("line %d: %s: %v", f.line, f.kind, err)
		}
		if f.kind == "inventory" {
			if _, err := wire.ParseInventory("web-3", text); err != nil {
				t.Errorf("line %d: %v", f.line, err)
			}
		}
		if f.kind == "heartbeat" {
			if _, err := heartbeat.Parse(text); err != nil {
				t.Errorf("line %d: %v", f.line, err)
			}
		}
	}
	for kind := range types {
		if !seen[kind] {
			t.Errorf("there is no example of %s", kind)
		}
	}
}

func checkMessage(t *testing.T, f fence) {
	env, err := jsonrpc.Scan([]byte(strings.TrimSpace(f.text)))
	if err != nil {
		t.Errorf("line %d: %v", f.line, err)
		return
	}
	switch f.kind {
	case "request":
		if env.MethodName() == "" || !jsonrpc.ValidID(env.ID) {
			t.Errorf("line %d: not a request", f.line)
		}
	case "response":
		if !env.IsResponse() {
			t.Errorf("line %d: not a response", f.line)
		}
	case "error":
		var e rpc.Error
		if err := json.Unmarshal(env.Error, &e); err != nil {
			t.Errorf("line %d: %v", f.line, err)
		} else if d := e.Details(); d.Kind == "" || d.Kind != e.Code.Kind() || d.Ran == "" {
			t.Errorf("line %d: code %d has kind %q, not %q", f.line, e.Code, e.Code.Kind(), d.Kind)
		}
	}
}

// rows returns the cells of the table that begins with header.
func rows(t *testing.T, page, header string) [][]string {
	t.Helper()
	_, rest, ok := strings.Cut(page, header+"\n")
	if !ok {
		t.Fatalf("no table begins with %s", header)
	}
	var out [][]string
	for _, line := range strings.Split(rest, "\n")[1:] {
		line, ok := strings.CutPrefix(line, "|")
		if !ok {
			break
		}
		var cells []string
		for _, c := range strings.Split(strings.TrimSuffix(line, "|"), "|") {
			cells = append(cells, strings.Trim(strings.TrimSpace(c), "`"))
		}
		out = append(out, cells)
	}
	return out
}

func TestErrorTable(t *testing.T) {
	listed := map[rpc.Code]bool{}
	for _, row := range rows(t, read(t, "protocol.md"), "| code | `kind` | when | besides `ran` |") {
		n, err := strconv.Atoi(row[0])
		if err != nil {
			t.Fatal(err)
		}
		listed[rpc.Code(n)] = true
		if got := rpc.Code(n).Kind(); got != row[1] {
			t.Errorf("%d is %q in the code, %q on the page", n, got, row[1])
		}
	}
	for code := rpc.Code(-33000); code < -31000; code++ {
		if code.Kind() != "" && !listed[code] {
			t.Errorf("%d %s is not on the page", code, code.Kind())
		}
	}
}

func TestToolNameTable(t *testing.T) {
	var keys []wire.ToolKey
	want := map[wire.ToolKey]string{}
	for _, row := range rows(t, read(t, "protocol.md"), "| id | local name | registered | why |") {
		k := wire.ToolKey{ID: row[0], Tool: row[1]}
		keys = append(keys, k)
		want[k] = row[2]
	}
	for k, got := range wire.AssignNames(keys) {
		if got != want[k] {
			t.Errorf("%s is registered as %s, on the page %s", k, got, want[k])
		}
	}
}

func TestReservedNames(t *testing.T) {
	page := read(t, "protocol.md")
	_, list, ok := strings.Cut(page, "Reserved, as ids,")
	if !ok {
		t.Fatal("the reserved names are not on the page")
	}
	list, _, _ = strings.Cut(list, "A host may reserve more.")
	names := regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(list, -1)
	for _, m := range names {
		if !manifest.Reserved(m[1]) {
			t.Errorf("%q is reserved on the page and not in the code", m[1])
		}
	}
	for _, m := range names[:8] {
		if manifest.Reserved("google." + m[1]) {
			t.Errorf("%q is not reserved for servers on the page, but in the code", m[1])
		}
	}
	if len(names) != 16 {
		t.Errorf("%d reserved names on the page, want 16", len(names))
	}
}

func TestStateOrder(t *testing.T) {
	page := strings.Join(strings.Fields(read(t, "protocol.md")), " ")
	_, list, _ := strings.Cut(page, "best instance, in the order ")
	list, _, _ = strings.Cut(list, ". ")
	var order []heartbeat.State
	for _, m := range regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(list, -1) {
		order = append(order, heartbeat.State(m[1]))
	}
	if len(order) != 8 {
		t.Fatalf("the page orders %q, want all 8 states", order)
	}
	for i := range order[1:] {
		if !order[i].Better(order[i+1]) {
			t.Errorf("%s is before %s on the page, and not better in the code", order[i], order[i+1])
		}
	}
}

func TestSubjects(t *testing.T) {
	page := read(t, "protocol.md")
	p := wire.Prefix("P")
	for _, subject := range []string{
		strings.Replace(p.RPC("<id>"), "P", "SP", 1), strings.Replace(p.InstanceRPC("<id>", "<instance>"), "P", "SP", 1),
		strings.Replace(p.Cancel("<id>"), "P", "SP", 1), strings.Replace(p.Ack("<id>", "<token>"), "P", "SP", 1), strings.Replace(p.Event("<id>"), "P", "SP", 1),
		p.Announce("<id>"), p.AnnounceRequest(), p.Heartbeat("<id>"), p.Shutdown("<id>"), p.Suspect("<id>"),
		p.HostReport("<bridge>"), p.RegistryRPC(), p.CatalogEvents() + ".>",
		p.Control("<bridge>"), p.Log("<id>"),
	} {
		if !strings.Contains(page, "| `"+subject+"` |") {
			t.Errorf("%s is not in the table of subjects", subject)
		}
	}
	for _, header := range []string{wire.HeaderTimeout, wire.HeaderCallID, wire.HeaderAgent,
		wire.HeaderSession, wire.HeaderStream, wire.HeaderFrame, wire.HeaderSeq, wire.HeaderTraceparent} {
		if !strings.Contains(page, "`"+header+"`") {
			t.Errorf("the header %s is not on the page", header)
		}
	}
}

// TestPythonCaller runs the Python caller of the page, which uses no library, with a real server.
func TestPythonCaller(t *testing.T) {
	t.Parallel()
	need(t, "python3")
	var script string
	for _, f := range fences(read(t, "protocol.md")) {
		if f.lang == "python" {
			script = f.text
		}
	}
	srv := natstest.Start(t, &server.Options{Port: -1, Username: "ada", Password: "a/b c"})
	nc := srv.Connect(nats.UserInfo("ada", "a/b c"))
	address := "NATS_URL=nats://ada:a%2Fb%20c@" + srv.Addr().String()
	if out := run(t, "env", address, "python3", "-c", script); !strings.Contains(out, "503") {
		t.Errorf("without responders it printed %q, want the status 503", out)
	}
	sub, err := nc.QueueSubscribe("ext.hello.rpc", wire.QueueGroup, func(m *nats.Msg) {
		env, err := jsonrpc.Scan(m.Data)
		if err != nil || env.MethodName() != "tools/greet" {
			return
		}
		_ = m.Respond(jsonrpc.AppendResult(nil, env.ID, env.Params)) // if the answer is lost, the test fails below
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection closes right after
	if out := run(t, "env", address, "python3", "-c", script); !strings.Contains(out, "{'name': 'Ada'}") {
		t.Errorf("it printed %q", out)
	}
}

// TestShellExtension sends the shell extension of the page the requests that nats reply would pass to it.
func TestShellExtension(t *testing.T) {
	need(t, "sh")
	need(t, "sed")
	page := read(t, "protocol.md")
	_, script, _ := strings.Cut(page, "cat > weather.sh <<'SH'\n")
	script, _, ok := strings.Cut(script, "SH\n")
	if !ok {
		t.Fatal("no weather.sh on the page")
	}
	for method, want := range map[string]string{
		"initialize":  `"tools":[{"name":"today"`,
		"ping":        `"result":{}`,
		"tools/today": `"weather":"sunny"`,
		"tools/nope":  `"code":-32601`,
	} {
		t.Setenv("NATS_REQUEST_BODY", string(jsonrpc.AppendRequest(nil, []byte(`17`), method, []byte(`{"id":4}`))))
		out := run(t, "sh", "-c", script)
		env, err := jsonrpc.Scan([]byte(out))
		if err != nil || string(env.ID) != "17" || !strings.Contains(out, want) {
			t.Errorf("%s answered %s (%v), want id 17 and %s", method, out, err, want)
		}
	}
}

// need skips the test if a program is not installed. With CI=true it fails the test instead.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%v, and CI must run every example", err)
		}
		t.Skip(err)
	}
}

func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", program, err, stderr.String())
	}
	return string(out)
}
