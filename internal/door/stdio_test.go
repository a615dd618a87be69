package door

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

const helloTools = `{"name":"ext_hello_greet","description":"[ext:hello] What greet does.","inputSchema":{"type":"object"}}`

func helloBed(t *testing.T) (*bed, *Door) {
	b := newBed(t)
	b.ready("hello", "mcp", tool("hello", "greet"))
	b.serve("hello", func(_ *nats.Msg, _ string, params json.RawMessage) (string, error) {
		return `{"content":[],"echo":` + string(params) + `}`, nil
	})
	return b, b.door(Options{Version: "1.2.3"})
}

// TestEras interleaves requests of both eras on one pipe.
func TestEras(t *testing.T) {
	_, d := helloBed(t)
	p := d.pipe(t)
	const info = `"serverInfo":{"name":"extmesh","title":"extmesh: the tools of a mesh","version":"1.2.3"}`
	const text = `"instructions":"This server provides the tools of 1 extensions on a tool mesh. Extensions:\nhello"`
	hello := func(version, answer string) (string, string) {
		return `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"` + version + `","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`,
			`{"jsonrpc":"2.0","id":"i","result":{"protocolVersion":"` + answer + `",` + capabilities + `,` + info + `,` + text + `}}`
	}
	list := `{"jsonrpc":"2.0","id":1,"result":{"tools":[` + helloTools + `]}}`
	modernList := `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","ttlMs":TTL,"cacheScope":"public","tools":[` + helloTools + `]}}`
	modern := func(id, method, more string) string {
		return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{` + modernMeta + more + `}}`
	}
	steps := [][2]string{
		{`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, list}, // before initialize, as a shell user does it
		{modern("1", "server/discover", ""), `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","ttlMs":TTL,"cacheScope":"public","supportedVersions":["2026-07-28"],` +
			modernCapabilities + `,` + text + `,"_meta":{"io.modelcontextprotocol/` + info[1:] + `}}}`},
		{`{"jsonrpc":"2.0","id":2,"method":"server/discover"}`, `{"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"server/discover needs params._meta[\"io.modelcontextprotocol/protocolVersion\"]"}}`},
	}
	for version, answer := range map[string]string{
		"2024-11-05": "2024-11-05", "2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25",
		"2026-07-28": "2025-11-25", "2099-01-01": "2025-11-25", "x": "2025-11-25",
	} {
		q, a := hello(version, answer)
		steps = append(steps, [2]string{q, a}, [2]string{modern("1", "tools/list", ""), modernList},
			[2]string{`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`, list})
	}
	call := `"name":"ext_hello_greet","arguments":{"n":1.0}`
	steps = append(steps, [][2]string{
		{`{"jsonrpc":"2.0","id":0,"method":"ping"}`, `{"jsonrpc":"2.0","id":0,"result":{}}`},
		{modern("1", "ping", ""), `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found: ping"}}`},
		{modern("1", "initialize", ""), `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found: initialize"}}`},
		{`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{}}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found: subscriptions/listen"}}`},
		{modern("1", "tools/call", ","+call), `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","content":[],"echo":{"name":"greet","arguments":{"n":1.0}}}}`},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + call + `}}`, `{"jsonrpc":"2.0","id":1,"result":{"content":[],"echo":{"name":"greet","arguments":{"n":1.0}}}}`},
		{strings.Replace(modern("1", "tools/list", ""), "2026-07-28", "2030-01-01", 1), `{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"Unsupported protocol version: 2030-01-01","data":{"requested":"2030-01-01","supported":["2026-07-28"]}}}`},
		{strings.Replace(modern("1", "tools/list", ""), `"2026-07-28"`, "7", 1), `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"params._meta[\"io.modelcontextprotocol/protocolVersion\"] must be a string"}}`},
		{strings.Replace(modern("1", "tools/list", ""), "clientCapabilities", "other", 1), `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"params._meta[\"io.modelcontextprotocol/clientCapabilities\"] must be an object"}}`},
	}...)
	for _, step := range steps {
		got := p.ask(step[0])
		want := step[1]
		if strings.Contains(got, `"ttlMs":0`) { // the catalog of the test has no registry that renews it
			want = strings.ReplaceAll(want, "TTL", "0")
		}
		if want = strings.ReplaceAll(want, "TTL", "30000"); got != want {
			t.Errorf("%s\nhave %s\nwant %s", step[0], got, want)
		}
	}
}

// TestMalformedInput checks that the session survives everything, and that what can be answered is.
func TestMalformedInput(t *testing.T) {
	_, d := helloBed(t)
	p := d.pipe(t)
	refused := func(code int, message string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":"%s"}}`, code, message)
	}
	const noID = `the request needs an \"id\": a number, or a string of at most 256 bytes`
	for _, tt := range [][2]string{
		{"garbage", refused(-32700, `the message is not JSON: want a JSON object at byte 0, have 'g'`)},
		{`{"jsonrpc":"2.0","id":1,"method":"ping"`, refused(-32700, `the message is not JSON: want \",\" or \"}\" at byte 39, where the message ends`)},
		{"\x00", refused(-32700, `the message is not JSON: want a JSON object at byte 0, have '\\x00'`)},
		{"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pin\xff\"}", refused(-32700, `the message is not UTF-8`)},
		{`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, refused(-32600, `batches are not supported: send one message per line`)},
		{`[]`, refused(-32600, `batches are not supported: send one message per line`)},
		{`{"jsonrpc":"2.0","id":null,"method":"ping"}`, refused(-32600, noID)},
		{`{"jsonrpc":"2.0","id":{},"method":"ping"}`, refused(-32600, noID)},
		{`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 300) + `","method":"ping"}`, refused(-32600, noID)},
		{`{"jsonrpc":"2.0","id":7}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"the message has no \"method\""}}`},
		{`{"jsonrpc":"2.0","id":7,"method":7}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"\"method\" must be a string"}}`},
		{`{"jsonrpc":"2.0","id":7,"method":"tools/list","params":[]}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"params must be an object"}}`},
		{`{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"_meta":1}}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"params._meta must be an object"}}`},
		{`{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"cursor":"x"}}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"params.cursor is not a cursor of this server: list without it to begin again"}}`},
		{`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":7}}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"params.name must be the name of a tool"}}`},
		{`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x","arguments":[]}}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"params.arguments must be an object"}}`},
		{`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ext_hello_gret"}}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"There is no tool ext_hello_gret here. Similar names: ext_hello_greet.","data":{"nearest":["ext_hello_greet"]}}}`},
		{`{"jsonrpc":"2.0","id":7,"method":"initialize","params":{}}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"params.protocolVersion must be a protocol version, such as 2025-11-25"}}`},
		{`{"jsonrpc":"2.0","id":7,"method":"x/y"}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"Method not found: x/y"}}`},
	} {
		p.want(tt[0], tt[1])
	}
	for _, id := range []string{"0", "-1", "9007199254740993", "1.0", `""`, `"` + strings.Repeat("y", 254) + `"`, `"\u00e9"`} {
		p.want(`{"jsonrpc":"2.0","id":`+id+`,"method":"ping"}`+"\r", `{"jsonrpc":"2.0","id":`+id+`,"result":{}}`)
	}
	// Nothing answers these.
	p.send("", "   ", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, `{"jsonrpc":"2.0","method":"no/such"}`,
		`{"jsonrpc":"2.0","id":9,"result":{}}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":7}`)
	p.want(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"result":{}}`)
}

func TestLongLines(t *testing.T) {
	t.Parallel()
	_, d := helloBed(t)
	p := d.pipe(t)
	arguments := `{"text":"` + strings.Repeat("x", 700_000) + `"}`
	got := p.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ext_hello_greet","arguments":` + arguments + `}}`)
	if !strings.Contains(got, arguments) {
		t.Errorf("the arguments of 700 kB are not in the answer: %.300s", got)
	}
	p.want(`{"x":"`+strings.Repeat("x", maxMessage)+`"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the message is longer than 64 MiB"}}`)
	p.want(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"result":{}}`)
}

func TestStart(t *testing.T) {
	_, d := helloBed(t)
	p := d.pipe(t)
	p.want("\ufeff"+`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"result":{}}`)
}

// TestStarted: the first lists wait for the extensions that start together with the server, but not longer than Wait, and
// initialize does not.
func TestStarted(t *testing.T) {
	b := newBed(t)
	b.ready("hello", "mcp", tool("hello", "greet"))
	started := make(chan struct{})
	const prompts = `{"jsonrpc":"2.0","id":2,"method":"prompts/list"}`
	p := b.door(Options{Started: started, Wait: -1}).pipe(t)
	p.want(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":1,"result":{"tools":[`+helloTools+`]}}`)
	p.want(prompts, `{"jsonrpc":"2.0","id":2,"result":{"prompts":[]}}`)

	p = b.door(Options{Started: started, Wait: time.Hour}).pipe(t)
	p.send(prompts, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	if got := p.ask(`{"jsonrpc":"2.0","id":3,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}`); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":3,"result":{"protocolVersion":`) {
		t.Errorf("the answer to initialize is %s", got)
	}
	close(started)
	if got := p.next() + p.next(); !strings.Contains(got, `{"tools":[`+helloTools+`]}`) || !strings.Contains(got, `{"prompts":[]}`) {
		t.Errorf("the lists are %s", got)
	}
}

// TestEndOfInput checks that the server ends soon after its input, although a call still runs, and answers what was
// complete.
func TestEndOfInput(t *testing.T) {
	b := newBed(t)
	b.ready("slow", "mcp", tool("slow", "wait"))
	called := make(chan string, 1)
	b.serve("slow", func(m *nats.Msg, _ string, _ json.RawMessage) (string, error) {
		called <- m.Header.Get("Ext-Call-Id")
		return "", errSilent
	})
	cancelled := make(chan string, 1)
	if _, err := b.nc.Subscribe("ext.slow.cancel", func(m *nats.Msg) { cancelled <- string(m.Data) }); err != nil {
		t.Fatal(err)
	}
	p := b.door(Options{}).pipe(t)
	p.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ext_slow_wait"}}`)
	id := <-called
	if _, err := p.in.Write([]byte(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)); err != nil { // no line end
		t.Fatal(err)
	}
	p.in.Close()
	began := time.Now()
	if err := <-p.ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	if took := time.Since(began); took > limit { // a second, and room for a loaded machine; the call would take five minutes
		t.Errorf("it ended after %v", took)
	}
	if got := p.next(); got != `{"jsonrpc":"2.0","id":2,"result":{}}` {
		t.Errorf("the last request was answered with %s", got)
	}
	select {
	case got := <-cancelled:
		if !strings.Contains(got, id) {
			t.Errorf("cancelled %s, want %s", got, id)
		}
	case <-time.After(limit):
		t.Error("the call was not cancelled on the mesh")
	}
}

// TestEndWhileRequestsArrive ends servers while clients send one request after the other.
func TestEndWhileRequestsArrive(t *testing.T) {
	d := runDoor(t, Options{})
	for range 20 {
		r, w := io.Pipe()
		t.Cleanup(func() { w.Close() })
		go func() { // ends with the pipe
			for n := 0; ; n++ {
				if _, err := fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x/y"}}`+"\n", n); err != nil {
					return
				}
			}
		}()
		ctx, cancel := context.WithCancel(t.Context())
		answers := make(firstWrite, 1)
		go func() { // ends with the first answer
			<-answers
			cancel()
		}()
		if err := d.ServeStdio(ctx, r, answers); err != nil {
			t.Error(err)
		}
		r.Close()
	}
}

// firstWrite has an element after the first Write.
type firstWrite chan struct{}

func (c firstWrite) Write(p []byte) (int, error) {
	select {
	case c <- struct{}{}:
	default:
	}
	return len(p), nil
}
