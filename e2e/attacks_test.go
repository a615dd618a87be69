package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// shippedMesh is a mesh with the shipped configuration; every program has its own user.
type shippedMesh struct {
	at        func(user string) string // the server to which a user connects
	servers   []*process
	client    *mesh.Client // as agent
	catalog   *mesh.Catalog
	cancelled string // a file with one line for each cancellation that the bundled server received
}

// remembers is an MCP server in shell with an answer of 12 MB, a call that never ends, and a record of cancellations.
const remembers = `
while IFS= read -r line; do
	case $line in *'"id":'*) id=${line#*'"id":'} id=${id%%%%[,\}]*} ;; *) id= ;; esac
	case $line in
	*'"notifications/cancelled"'*) echo cancelled >>%q; continue ;;
	*'"initialize"'*) r='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"b","version":"1"}}' ;;
	*'"tools/list"'*) r='{"tools":[{"name":"slow","inputSchema":{"type":"object"}},{"name":"large","inputSchema":{"type":"object"}}]}' ;;
	*'"slow"'*) continue ;;
	*'"large"'*) r="{\"content\":[{\"type\":\"text\",\"text\":\"$(head -c 12000000 /dev/zero | tr '\0' x)\"}]}" ;;
	*) r='{}' ;;
	esac
	[ -n "$id" ] && printf '{"jsonrpc":"2.0","id":%%s,"result":%%s}\n' "$id" "$r"
done
`

func startShippedMesh(t *testing.T, servers []*process, at func(user string) string) *shippedMesh {
	t.Helper()
	m := &shippedMesh{at: at, servers: servers, cancelled: filepath.Join(t.TempDir(), "cancelled")}
	env := func(user string) []string { return []string{"NATS_URL=" + at(user)} }
	inbox := func(user string) string { return "--inbox-prefix=_INBOX." + user }
	start(t, env("registry"), program(t, "registry"), inbox("registry"))
	dir := writeWho(t, "zero")
	write(t, filepath.Join(dir, "slow", "mcp.sh"), fmt.Sprintf(remembers, m.cancelled))
	write(t, filepath.Join(dir, "slow", "plugin.toml"), `
[plugin]
id = "slow"
version = "1.0.0"
[capabilities]
tools = ["slow", "large"]
[transport]
type = "stdio"
dialect = "mcp"
command = "sh"
args = ["mcp.sh"]
`)
	skills := filepath.Join(t.TempDir(), "skills")
	write(t, filepath.Join(skills, "greeting", "SKILL.md"), "---\nname: Greeting\ndescription: How to greet.\n---\nSay hello.\n")
	config := filepath.Join(t.TempDir(), "extensions.yaml")
	write(t, config, fmt.Sprintf("extensions:\n  search_paths: [%q]\n  skills_dir: %q\n", dir, skills))
	start(t, env("bridge-0"), program(t, "stdio-bridge"), "--name", "bridge-0", "--config", config, "--state-dir", t.TempDir(), inbox("bridge-0"))
	start(t, env("primes"), program(t, "primes"), inbox("primes"))
	m.client, m.catalog = caller(t, at("agent"), nats.CustomInboxPrefix("_INBOX.agent"))
	eventually(t, time.Minute, "everything is ready", func() bool {
		return instances(m.catalog, "who", "") == 1 && instances(m.catalog, "slow", "") == 1 && instances(m.catalog, "primes", "") == 1 &&
			len(m.catalog.Skills()) == 1
	})
	return m
}

// connect connects as a user, with its own inbox prefix.
func (m *shippedMesh) connect(t *testing.T, user string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(m.at(user), nats.Timeout(time.Minute), nats.CustomInboxPrefix("_INBOX."+user), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// created returns the time at which the catalog's stream was created. It fails the test if there is no stream.
func (m *shippedMesh) created(t *testing.T, operator *nats.Conn) string {
	t.Helper()
	msg, err := operator.Request("$JS.API.STREAM.INFO.KV_ext_catalog", nil, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		Created string
		Error   struct{ Description string }
	}
	if err := json.Unmarshal(msg.Data, &info); err != nil || info.Created == "" {
		t.Fatalf("the catalog's stream: %s, %v", msg.Data, err)
	}
	return info.Created
}

// cancellations counts the cancellations that the bundled server received.
func (m *shippedMesh) cancellations() int {
	data, err := os.ReadFile(m.cancelled)
	if err != nil {
		return 0
	}
	return strings.Count(string(data), "\n")
}

// TestAccountsOnOneServer and TestAccountsOnThreeServers test callers in a separate account: everything that they may do
// works, and nothing else does. On three servers, programs and callers are connected to different servers.
func TestAccountsOnOneServer(t *testing.T) {
	t.Parallel()
	url, server := startShipped(t, "one.conf", nil)
	testAccounts(t, startShippedMesh(t, []*process{server}, func(user string) string { return as(url, user) }))
}

func TestAccountsOnThreeServers(t *testing.T) {
	slowOnly(t, "three servers")
	t.Parallel()
	c := startCluster(t)
	place := map[string]int{"registry": 1, "bridge-0": 0, "primes": 1, "agent": 2, "operator": 0}
	testAccounts(t, startShippedMesh(t, c.nodes, func(user string) string { return c.at(place[user], user) }))
}

func testAccounts(t *testing.T, m *shippedMesh) {
	t.Run("calls", m.testCalls)
	t.Run("attacks", m.testAttacks)
	for _, s := range m.servers {
		for line := range strings.Lines(s.output()) {
			// Only operations of the agent, in testAttacks, are refused.
			if strings.Contains(line, "iolation") && !strings.Contains(line, "agent") {
				t.Errorf("the server refused an operation of a program: %s", line)
			}
		}
	}
}

// testCalls tests everything that callers may do.
func (m *shippedMesh) testCalls(t *testing.T) {
	if r, err := m.client.Call(t.Context(), "ext_primes_factor", json.RawMessage(`{"n":91}`)); err != nil || !strings.Contains(string(r), "[7,13]") {
		t.Errorf("a service: %s, %v", r, err)
	}
	if _, err := m.client.Call(t.Context(), "ext_who_who", nil); err != nil {
		t.Errorf("a child: %v", err)
	}
	progress := 0
	if _, err := m.client.CallStream(t.Context(), "ext_primes_count", json.RawMessage(`{"below":2000000}`), func(json.RawMessage) { progress++ }); err != nil || progress == 0 {
		t.Errorf("a call with progress: %v, %d messages", err, progress)
	}
	long, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	if r, err := m.client.Call(long, "ext_slow_large", nil); err != nil || len(r) < 12_000_000 {
		t.Errorf("an answer of 12 MB: %d bytes, %v", len(r), err)
	}
	if _, err := m.client.CallExt(t.Context(), "nobody", "tools/x", nil); !errors.Is(err, rpc.CodeUnavailable) {
		t.Errorf("an extension that does not exist: %v, want unavailable", err)
	}

	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	before := m.cancellations()
	_, err := m.client.Call(short, "ext_slow_slow", nil)
	cancel()
	if !errors.Is(err, rpc.CodeTimeout) {
		t.Errorf("a call without enough time: %v", err)
	}
	eventually(t, time.Minute, "the cancellation reaches the child", func() bool { return m.cancellations() > before })

	// A caller that disconnects during a call: the next keepalive has no responders.
	before = m.cancellations()
	gone := m.connect(t, "agent")
	frames, err := gone.SubscribeSync(gone.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	gone.PublishMsg(&nats.Msg{Subject: "ext.slow.rpc", Reply: frames.Subject, Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/slow"}`),
		Header: nats.Header{"Ext-Stream": {"1"}, "Ext-Timeout": {"3600000"}}})
	if f, err := frames.NextMsg(20 * time.Second); err != nil || f.Header.Get("Ext-Frame") != "accepted" {
		t.Fatalf("the first frame: %v, %v", f, err)
	}
	gone.Close()
	eventually(t, time.Minute, "the call of a caller that has gone is cancelled", func() bool { return m.cancellations() > before })
}

// reservedID marks subjects that the account's imports treat as calls or acknowledgements, because imports have no deny list.
// Between servers, the server's answers do reach these subjects. Registries refuse them because the ids are reserved and
// because they have headers.
const reservedID = "an extension whose id is reserved"

// forged lists subjects on which an agent may not publish, with the effect of a message.
var forged = map[string]string{
	"ext.registry.heartbeat.primes":          "an instance without a name is ready",
	"ext.registry.heartbeat.registry":        "another registry",
	"ext.registry.shutdown.primes":           "the extension is shut down",
	"ext.registry.host.bridge-0":             "the host has no extensions",
	"ext.registry.announce.primes":           "another version",
	"ext.registry.request":                   "all programs announce their extensions",
	"ext.control.bridge-0":                   "a control request",
	"ext.log.who":                            "a line of a log",
	"ext.registry.catalog.state.primes":      "a change of the catalog",
	"$KV.ext_catalog.lease.registry":         "the lease is taken",
	"$JS.API.STREAM.DELETE.KV_ext_catalog":   "the catalog is deleted",
	"$JS.API.STREAM.PURGE.KV_ext_catalog":    "the catalog is emptied",
	"ext.registry.announce.ack.x":            reservedID,
	"ext.registry.heartbeat.rpc":             reservedID,
	"$JS.API.CONSUMER.CREATE.KV_ext_catalog": "a consumer",
}

// testAttacks is an agent that tries to make other programs publish on subjects that it may not use itself: the sender of a
// request chooses the reply subject.
func (m *shippedMesh) testAttacks(t *testing.T) {
	agent, operator := m.connect(t, "agent"), m.connect(t, "operator")
	created := m.created(t, operator)
	received := make(chan *nats.Msg, 1<<16)
	for _, subject := range []string{"ext.registry.>", "ext.log.>", "_INBOX.operator.>"} {
		if _, err := operator.ChanSubscribe(subject, received); err != nil {
			t.Fatal(err)
		}
	}
	if err := operator.Flush(); err != nil {
		t.Fatal(err)
	}
	const get = "$JS.API.DIRECT.GET.KV_ext_catalog"
	for range 20 {
		// Extensions answer to any inbox: the waiting client is protected by its random reply subject. The server's answers
		// must not reach another user's inbox.
		agent.PublishRequest(get+".$KV.ext_catalog.spec.primes", "_INBOX.operator.1", nil)
		agent.Publish("_INBOX.operator.1", []byte(`{"id":"primes"}`))
		for subject := range forged {
			// A key that exists, one that does not, the request with a body, and calls of a child and of a service.
			agent.PublishRequest(get+".$KV.ext_catalog.spec.primes", subject, nil)
			agent.PublishRequest(get+".$KV.ext_catalog.spec.nobody", subject, nil)
			agent.PublishRequest(get, subject, []byte(`{"last_by_subj":"$KV.ext_catalog.spec.primes"}`))
			agent.PublishRequest("ext.primes.rpc", subject, []byte(`{"jsonrpc":"2.0","id":"primes","method":"ping"}`))
			agent.PublishRequest("ext.who.rpc", subject, []byte(`{"jsonrpc":"2.0","id":"who","method":"ping"}`))
			agent.PublishRequest("ext.registry.rpc", subject, []byte(`{"jsonrpc":"2.0","id":"who","method":"status"}`))
			agent.Publish(subject, []byte(`{"id":"primes"}`))
		}
	}
	// When these are answered, so are all requests above. When the operator has received the mark, it has received all
	// messages before.
	for _, subject := range []string{"ext.primes.rpc", "ext.who.rpc", "ext.registry.rpc"} {
		if _, err := agent.Request(subject, []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`), time.Minute); err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
	}
	if answer, err := agent.Request(get+".$KV.ext_catalog.spec.primes", nil, time.Minute); err != nil || !strings.Contains(string(answer.Data), `"primes"`) {
		t.Fatalf("the catalog: %v, %v", answer, err)
	}
	agent.Publish("ext.registry.suspect.the-mark", []byte(`{"id":"the-mark","reason":"timeout"}`))
	for deadline := time.After(time.Minute); ; {
		var got *nats.Msg
		select {
		case got = <-received:
		case <-deadline:
			t.Fatal("the operator does not receive the mark")
		}
		if got.Subject == "ext.registry.suspect.the-mark" {
			break
		}
		what, isForged := forged[got.Subject]
		// Answers of the server have headers with the name of the stream; answers of services have a jsonrpc member. Events
		// of the catalog may have such headers.
		byServer := (got.Header.Get("Nats-Stream") != "" || got.Header.Get("Status") != "") &&
			!strings.HasPrefix(got.Subject, "ext.registry.catalog.") && what != reservedID
		if byServer || isForged && strings.Contains(string(got.Data), `"jsonrpc"`) || string(got.Data) == `{"id":"primes"}` {
			t.Errorf("forged: %s (%s): %v %.200s", got.Subject, what, got.Header, got.Data)
		}
	}
	if again := m.created(t, operator); again != created {
		t.Errorf("the catalog's stream was created at %s, and again at %s", created, again)
	}
	if _, err := m.client.Call(t.Context(), "ext_primes_factor", json.RawMessage(`{"n":91}`)); err != nil {
		t.Errorf("a call afterwards: %v", err)
	}
	for _, id := range []string{"rpc", "ack", "ack.x", "nobody"} {
		if e, ok := m.catalog.Get(id); ok {
			t.Errorf("the catalog has %s: %+v", id, e)
		}
	}
	e, ok := m.catalog.Get("primes")
	if !ok || e.State == nil || !e.State.Available || len(e.State.Instances) != 1 || e.State.Instances[0].Instance == "" {
		t.Errorf("primes is shown as %+v", e.State)
	}
	if len(m.catalog.Skills()) != 1 || instances(m.catalog, "who", "") != 1 {
		t.Errorf("%d skills, %d instances of who", len(m.catalog.Skills()), instances(m.catalog, "who", ""))
	}
}

// TestServicesAnswerInboxesOnly sends requests with reply subjects that belong to heartbeats and to JetStream.
func TestServicesAnswerInboxesOnly(t *testing.T) {
	t.Parallel()
	for id, command := range services(t) {
		t.Run(id, func(t *testing.T) { answersInboxesOnly(t, id, command) })
	}
}

func answersInboxesOnly(t *testing.T, id string, command []string) {
	url, _ := startNATS(t)
	nc := connect(t, url)
	start(t, nil, command[0], append(command[1:], "--nats-url", url)...)
	ping := []byte(`{"jsonrpc":"2.0","id":"victim","method":"ping"}`)
	subject := "ext." + id + ".rpc"
	eventually(t, time.Minute, "it answers", func() bool {
		_, err := nc.Request(subject, ping, time.Second)
		return err == nil
	})
	heard := make(chan *nats.Msg, 64)
	replies := []string{"ext.registry.heartbeat.victim", "ext.registry.shutdown.victim", "$KV.ext_catalog.lease.registry", "$JS.API.STREAM.DELETE.x"}
	for _, reply := range replies {
		if _, err := nc.ChanSubscribe(reply, heard); err != nil {
			t.Fatal(err)
		}
	}
	for _, reply := range replies {
		if err := nc.PublishRequest(subject, reply, ping); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if _, err := nc.Request(subject, ping, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	for len(heard) > 0 {
		m := <-heard
		t.Errorf("it answers on %s: %s", m.Subject, m.Data)
	}
}
