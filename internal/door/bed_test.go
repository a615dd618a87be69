package door

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// limit is how long a test waits for what must happen. It is generous, for loaded machines.
const limit = time.Minute

// bed is a NATS server with a catalog that the test writes, and extensions that the test answers for.
type bed struct {
	t   testing.TB
	srv *natstest.Server
	nc  *nats.Conn
	kv  jetstream.KeyValue
}

func newBed(t testing.TB) *bed { return newBedOn(t, &server.Options{Port: -1, JetStream: true}) }

func newBedOn(t testing.TB, o *server.Options) *bed {
	b := &bed{t: t, srv: natstest.Start(t, o)}
	b.nc = b.connect()
	var err error
	if b.kv, err = natstest.JetStream(t, b.nc).CreateKeyValue(t.Context(), jetstream.KeyValueConfig{
		Bucket: "ext_catalog", LimitMarkerTTL: time.Minute,
		RePublish: &jetstream.RePublish{Source: "$KV.ext_catalog.>", Destination: "ext.registry.catalog.>"},
	}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bed) connect() *nats.Conn {
	b.t.Helper()
	nc, err := mesh.Connect(b.srv.ClientURL(), nats.Timeout(time.Minute))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(nc.Close)
	return nc
}

func (b *bed) put(key string, doc any) {
	b.t.Helper()
	data, err := json.Marshal(doc)
	if err == nil {
		_, err = b.kv.Put(b.t.Context(), key, data)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// ready puts an extension with tools into the catalog, ready.
func (b *bed) ready(id, dialect string, tools ...mesh.Tool) {
	b.t.Helper()
	b.put("spec."+id, mesh.Spec{ID: id, Version: "1.0.0", Transport: "stdio", Dialect: dialect, Subject: "ext." + id + ".rpc", Tools: tools})
	b.state(id, heartbeat.Ready, "")
}

func (b *bed) state(id string, s heartbeat.State, reason string) {
	b.t.Helper()
	b.put("state."+id, mesh.StateDoc{State: s, Available: s == heartbeat.Ready, Reason: reason, Since: time.Now().UTC(), Instances: []mesh.InstanceState{}})
}

// tool is a descriptor as the catalog has it. extra are members as JSON: "annotations", `{"readOnlyHint":true}`, …
func tool(id, own string, extra ...string) mesh.Tool {
	t := mesh.Tool{Name: wire.ToolName(id, own), Own: own, Description: "[ext:" + id + "] What " + own + " does.", InputSchema: wire.EmptySchema}
	for i := 0; i < len(extra); i += 2 {
		if extra[i] == "inputSchema" {
			t.InputSchema = json.RawMessage(extra[i+1])
			continue
		}
		t.Extra = append(t.Extra, wire.Member{Key: extra[i], Value: json.RawMessage(extra[i+1])})
	}
	return t
}

// serve answers the calls of an extension. The handler returns a result or an error, or errSilent for no answer.
func (b *bed) serve(id string, h func(m *nats.Msg, method string, params json.RawMessage) (string, error)) {
	b.t.Helper()
	_, err := b.nc.QueueSubscribe("ext."+id+".rpc", "q", func(m *nats.Msg) {
		env, err := jsonrpc.Scan(m.Data)
		if err != nil {
			b.t.Errorf("the request is malformed: %v", err)
			return
		}
		go func() { // ends with the handler
			result, err := h(m, env.MethodName(), env.Params)
			var e *rpc.Error
			switch {
			case errors.Is(err, errSilent):
				return
			case errors.As(err, &e):
				reply := nats.NewMsg(m.Reply)
				reply.Data = jsonrpc.AppendError(nil, env.ID, e)
				if e.Details().Kind != "" { // the mesh marks its errors
					reply.Header.Set("Nats-Service-Error-Code", "500")
					reply.Header.Set("Nats-Service-Error", "mesh")
				}
				_ = m.RespondMsg(reply)
			default:
				_ = m.Respond(jsonrpc.AppendResult(nil, env.ID, []byte(result)))
			}
		}()
	})
	if err == nil {
		err = b.nc.FlushTimeout(limit)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

var errSilent = errors.New("no answer")

// door runs a Door on the mesh until the test ends.
func (b *bed) door(o Options) *Door {
	b.t.Helper()
	d := runDoor(b.t, o)
	b.attach(d)
	natstest.Eventually(b.t, "the door has read the catalog", d.isReady)
	return d
}

func (b *bed) attach(d *Door) {
	nc := b.connect()
	catalog := mesh.NewCatalog(nc, mesh.CatalogOptions{})
	run(b.t, func(ctx context.Context) { _ = catalog.Run(ctx) })
	d.Attach(catalog, mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog, WaitReady: 50 * time.Millisecond, Timeout: d.CallTimeout()}), func(id string, receive func([]byte)) (func(), error) {
		s, err := nc.Subscribe("ext."+id+".event", func(m *nats.Msg) { receive(m.Data) })
		return func() { _ = s.Unsubscribe() }, err
	})
}

// runDoor runs a Door without a mesh until the test ends.
func runDoor(t testing.TB, o Options) *Door {
	t.Helper()
	if o.Wait == 0 {
		o.Wait = -1
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	run(t, func(ctx context.Context) { _ = d.Run(ctx) })
	return d
}

// run runs f until the test ends.
func run(t testing.TB, f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { f(ctx) }) // ends with ctx
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// pipe is a client on standard input and output.
type pipe struct {
	t     testing.TB
	in    io.WriteCloser
	lines chan string
	ended chan error
}

func (d *Door) pipe(t testing.TB) *pipe {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p := &pipe{t: t, in: inW, lines: make(chan string, 10_000), ended: make(chan error, 1)}
	go func() { // ends with the input
		p.ended <- d.ServeStdio(context.Background(), inR, outW)
		outW.Close()
	}()
	go func() { // ends with the output
		defer close(p.lines)
		r := bufio.NewReader(outR)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			p.lines <- strings.TrimSuffix(line, "\n")
		}
	}()
	t.Cleanup(func() {
		inW.Close()
		inR.Close()
		outR.Close()
	})
	return p
}

func (p *pipe) send(lines ...string) {
	p.t.Helper()
	for _, line := range lines {
		if _, err := io.WriteString(p.in, line+"\n"); err != nil {
			p.t.Fatal(err)
		}
	}
}

// next returns the next message of the server.
func (p *pipe) next() string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatal("the server has ended")
		}
		return line
	case <-time.After(limit):
		p.t.Fatal("no message of the server")
		return ""
	}
}

// ask sends a message and returns the next one of the server.
func (p *pipe) ask(line string) string {
	p.t.Helper()
	p.send(line)
	return p.next()
}

// want sends a message and compares the answer.
func (p *pipe) want(line, answer string) {
	p.t.Helper()
	if got := p.ask(line); got != answer {
		p.t.Errorf("%s\nhave %s\nwant %s", line, got, answer)
	}
}

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

// subscribers reports whether anybody subscribes to a subject.
func (b *bed) subscribers(subject string) bool {
	subs, err := b.srv.Subsz(&server.SubszOptions{Subscriptions: true, Limit: 1000, Test: subject})
	if err != nil {
		b.t.Fatal(err)
	}
	return len(subs.Subs) > 0
}
