//go:build prometheus

package deploy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestPrometheus breaks a mesh in the ways that the shipped alerts name, under a real Prometheus: each alert fires, and ends when
// the cause is gone.
func TestPrometheus(t *testing.T) {
	w := watch(t)
	for _, id := range []string{"failing", "exiting", "slow", "noisy", "hello"} {
		w.must("wait", id, "--timeout", "5s")
	}
	w.until("max(extmesh_hosts{state=\"ready\"}) == 2") // before the first ping of a registry, a bridge has no state to lose
	w.await("a healthy mesh", nil)
	nc, err := nats.Connect(w.nats, nats.Timeout(time.Minute), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)

	w.breakExtensions(nc)
	w.dashboards("failing")
	w.repairExtensions(nc)
	w.breakRegistries()
	w.breakJetStream(nc)

	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(read(t, "deploy/monitoring/rules.yml"), -1) {
		if !w.covered[m[1]] {
			t.Errorf("no case of this test makes %s fire", m[1])
		}
	}
}

// otherMesh are the programs of the second, empty mesh.
var otherMesh = []string{"other nats", "registry-of-other", "mcp-of-other"}

// breakExtensions has the causes that are independent of each other.
func (w *watched) breakExtensions(nc *nats.Conn) {
	publish := w.publish(nc)
	call := func(id, tool string) cause {
		return func(context.Context) {
			publish("ext."+id+".rpc", `{"jsonrpc":"2.0","id":1,"method":"tools/`+tool+`","params":{}}`)
		}
	}
	w.stop("bridge-1", syscall.SIGKILL)
	for _, name := range otherMesh {
		w.start(name)
	}
	w.await("a bridge is killed, extensions and clients fail, there are two meshes", map[string]cause{
		"ExtmeshHostLost":          nil,
		"ExtmeshDown":              nil,
		"ExtmeshExtensionRestarts": call("exiting", "exit"),
		"ExtmeshExtensionsDown":    call("exiting", "exit"), // more than max_restarts: then it has failed
		"ExtmeshInstancesFailed":   call("exiting", "exit"),
		"ExtmeshCallsFail":         call("failing", "no"),
		"ExtmeshCallsRefused":      call("slow", "wait"), // one at a time
		"ExtmeshCallsSlow":         call("slow", "wait"),
		"ExtmeshUnusableOutput":    call("noisy", "noise"),
		"ExtmeshCallersReport":     func(context.Context) { _ = w.extctl("call", "hello/fixed", "--timeout", "1s") }, // its bridge was killed
		"ExtmeshMessagesRefused":   func(context.Context) { publish("ext.registry.announce.unknown", "not JSON") },
		"ExtmeshRegistrySlow":      func(context.Context) { publish(heartbeat(time.Now().Add(-20 * time.Minute))) },
		"ExtmeshMCPCallsFail":      w.mcp("ada", "tools/call", `"name":"ext_hello_fixed","arguments":{},`, 1),
		"ExtmeshMCPRefused":        w.mcp("bob", "tools/list", "", 50),
		"ExtmeshTwoLeaders":        nil, // each of two NATS servers without a connection to each other has one
		"ExtmeshMCPNoTools":        nil, // the other mesh is empty
		"ExtmeshReconnects":        w.disconnect,
	})
}

// publish returns a function that sends a message; nobody receives an answer.
func (w *watched) publish(nc *nats.Conn) func(subject, data string) {
	return func(subject, data string) {
		if err := nc.PublishRequest(subject, "_INBOX.nobody", []byte(data)); err != nil {
			w.Error(err)
		}
	}
}

// heartbeat is one of a service whose clock shows ts.
func heartbeat(ts time.Time) (subject, data string) {
	return "ext.registry.heartbeat.clock", fmt.Sprintf(`{"id":"clock","version":"1.0.0","ts":%q}`, ts.Format(time.RFC3339))
}

// mcp makes a number of requests to the MCP server.
func (w *watched) mcp(token, method, params string, number int) cause {
	return func(ctx context.Context) {
		for range number {
			r := mcpRequest(ctx, w.T, "http://"+w.door+"/mcp", token, method, params)
			if method == "tools/call" {
				r.Header.Set("Mcp-Name", "ext_hello_fixed")
			}
			send(http.DefaultClient, r)
		}
	}
}

// disconnect closes the connection of the second mesh's MCP server to NATS, if it has one.
func (w *watched) disconnect(context.Context) {
	response, err := http.Get("http://" + w.web["mcp-of-other"] + "/metrics")
	if err != nil {
		return // it starts
	}
	defer response.Body.Close()
	if page, err := io.ReadAll(response.Body); err == nil && strings.Contains(string(page), "\nextmesh_nats_connected 1\n") {
		w.proxy.cut()
	}
}

// repairExtensions removes what breakExtensions has done.
func (w *watched) repairExtensions(nc *nats.Conn) {
	for _, name := range otherMesh {
		w.stop(name, syscall.SIGKILL)
	}
	for range 1000 { // the clock is right; the registry averages the delays of some hundred
		w.publish(nc)(heartbeat(time.Now()))
	}
	w.publish(nc)("ext.registry.shutdown.clock", `{"id":"clock","reason":"removed"}`)
	w.start("bridge-1")
	w.must("restart", "exiting")
	w.await("all is repaired", nil)
}

// breakRegistries stops all registries.
func (w *watched) breakRegistries() {
	w.stop("registry-0", syscall.SIGKILL)
	w.stop("registry-1", syscall.SIGKILL)
	w.await("all registries are killed", map[string]cause{"ExtmeshNoLeader": nil, "ExtmeshTooFewRegistries": nil})
	w.start("registry-0")
	w.start("registry-1")
	w.await("the registries are back", nil)
}

// breakJetStream makes the catalog's stream refuse what the registry writes, and then runs NATS without JetStream.
func (w *watched) breakJetStream(nc *nats.Conn) {
	w.limitCatalog(nc, true)
	w.await("the catalog's stream is full", map[string]cause{
		"ExtmeshWritesFail": func(context.Context) { w.publish(nc)("ext.registry.announce.new", `{"id":"new","version":"1.0.0"}`) },
	})
	w.limitCatalog(nc, false)
	w.publish(nc)("ext.registry.shutdown.new", `{"id":"new","reason":"removed"}`)
	w.until("sum(extmesh_extensions) == 5") // a server that is killed loses what it has not delivered yet
	w.stop("nats", syscall.SIGKILL)
	w.await("NATS is killed", map[string]cause{"ExtmeshNotConnected": nil})
	w.start("nats without JetStream")
	w.await("NATS runs without JetStream", map[string]cause{"ExtmeshNoJetStream": nil, "ExtmeshCatalogOld": nil})
	w.stop("nats without JetStream", syscall.SIGKILL)
	w.start("nats")
	w.await("JetStream is back", nil)
}

// limitCatalog sets the limit of the number of documents in the catalog's bucket to those that it has, or removes it.
func (w *watched) limitCatalog(nc *nats.Conn, limited bool) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		w.Fatal(err)
	}
	stream, err := js.Stream(ctx, "KV_ext_catalog")
	if err != nil {
		w.Fatal(err)
	}
	config := stream.CachedInfo().Config
	if config.MaxMsgs = -1; limited {
		config.MaxMsgs = int64(stream.CachedInfo().State.Msgs)
	}
	if _, err := js.UpdateStream(ctx, config); err != nil {
		w.Fatal(err)
	}
}

// A proxy passes connections to a server on, until they are cut.
type proxy struct {
	url  string
	mu   sync.Mutex
	open []net.Conn
}

func newProxy(t *testing.T, server string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{url: "nats://" + l.Addr().String()}
	t.Cleanup(func() {
		l.Close()
		p.cut()
	})
	go func() { // ends with the listener
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.pass(client, server)
		}
	}()
	return p
}

func (p *proxy) pass(client net.Conn, server string) {
	to, err := net.Dial("tcp", server)
	if err != nil {
		client.Close()
		return
	}
	p.mu.Lock()
	p.open = append(p.open, client, to)
	p.mu.Unlock()
	go io.Copy(to, client) // both end with a cut
	go io.Copy(client, to)
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		c.Close()
	}
	p.open = nil
}
