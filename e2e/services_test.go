package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// listing is the output of extctl list --json, by id.
type listing map[string]listed

type listed struct {
	ID, State, Reason, Version, Transport string
	Available                             bool
	Tools                                 int
	Instances                             []struct{ Instance, State, Host, Bridge string }
}

// ready returns the number of ready instances.
func (x listed) ready() int {
	n := 0
	for _, i := range x.Instances {
		if i.State == "ready" && i.Instance != "" {
			n++
		}
	}
	return n
}

func list(t *testing.T, url string) listing {
	t.Helper()
	out, stderr, code := extctl(t, url, "list", "--json")
	var l struct{ Extensions []listed }
	if code != 0 || json.Unmarshal([]byte(out), &l) != nil {
		t.Fatalf("extctl list: exit %d, %s%s", code, out, stderr)
	}
	by := listing{}
	for _, x := range l.Extensions {
		by[x.ID] = x
	}
	return by
}

// services returns the commands that start the example services, by id.
func services(t *testing.T) map[string][]string {
	t.Helper()
	return map[string][]string{
		"primes": {program(t, "primes")},
		"disk":   {"bash", "../examples/services/disk/disk.sh"},
	}
}

// serviceCalls are calls to each service, with a part of the answer or of the error.
var serviceCalls = map[string][]struct {
	args   []string
	answer string
	code   int
}{
	"primes": {
		{args: []string{"ext_primes_factor", "n=600851475143"}, answer: `[71,839,1471,6857]`},
		{args: []string{"ext_primes_count", "below=100000"}, answer: `{"primes":9592}`},
		{args: []string{"ext_primes_factor", "n=1"}, answer: "from 2 to 10^15", code: 2},
		{args: []string{"ext_primes_factor", "n=two"}, code: 2},
	},
	"disk": {
		{args: []string{"ext_disk_usage", "path=/"}, answer: `{"path":"/","used_percent":`},
		{args: []string{"ext_disk_usage"}, answer: `{"path":"/","used_percent":`},
		{args: []string{"ext_disk_usage", "path=/no/such/place"}, answer: "exists on this host", code: 2},
		{args: []string{"ext_disk_usage", `path=/";rm -rf "`}, answer: "exists on this host", code: 2},
		{args: []string{"ext_disk_mounts"}, answer: `{"mounts":`},
	},
	"words": {
		{args: []string{"ext_words_count", "text=tools on the bus"}, answer: `{"words":4,"characters":16}`},
		{args: []string{"ext_words_linger", "ms=0"}, answer: `{"lingered_ms":0}`},
		{args: []string{"ext_words_linger", "ms=60000", "--timeout", "300ms"}, code: 11},
	},
}

// TestServices runs the services of examples/services that only need Go and a shell.
func TestServices(t *testing.T) {
	t.Parallel()
	testServices(t, services(t))
}

// testServices tests services in one catalog, from beginning to end: declared by a bridge that finds their manifests,
// started, called, stopped.
func testServices(t *testing.T, commands map[string][]string) {
	url, _ := startNATS(t)
	env := []string{"NATS_URL=" + url}
	start(t, env, program(t, "registry"))
	start(t, env, program(t, "stdio-bridge"), "--name", "finder", "--search-path", "../examples/services", "--state-dir", t.TempDir())
	// Spec and state have separate keys, which are written one after the other.
	var found listing
	eventually(t, time.Minute, "the manifests' services are in the catalog, with their states", func() bool {
		if _, _, code := extctl(t, url, "show", "words"); code != 0 {
			return false
		}
		found = list(t, url)
		return len(found) == 3 && !slices.ContainsFunc(slices.Collect(maps.Values(found)), func(x listed) bool { return x.Transport == "" || x.State == "" })
	})
	for id, x := range found {
		if x.Available || x.State != "lost" || x.Transport != "nats" || !strings.Contains(x.Reason, "no heartbeat yet") {
			t.Errorf("before its first start %s is %s (%s)", id, x.State, x.Reason)
		}
	}

	running := map[string]*process{}
	for id, command := range commands {
		running[id] = start(t, nil, command[0], append(command[1:], "--nats-url", url, "--subject-prefix", "ext")...)
	}
	for id := range commands {
		eventually(t, time.Minute, id+" is ready, with its tools", func() bool {
			x := list(t, url)[id]
			return x.Available && x.State == "ready" && x.Tools == 2 && x.ready() == 1
		})
	}
	for id := range commands {
		for _, c := range serviceCalls[id] {
			out, stderr, code := extctl(t, url, append([]string{"call"}, c.args...)...)
			if code != c.code && !(c.code == 2 && code == 12) || !strings.Contains(out+stderr, c.answer) {
				t.Errorf("extctl call %q: exit %d, %s%s; want %d and %q", c.args, code, out, stderr, c.code, c.answer)
			}
		}
		if _, stderr, code := extctl(t, url, "ping", id); code != 0 {
			t.Errorf("ping %s: exit %d, %s", id, code, stderr)
		}
	}
	answeredOnce(t, url, commands)

	for id, p := range running {
		p.stop(t, 10*time.Second)
		if p.err != nil {
			t.Errorf("%s ended with %v", id, p.err)
		}
		eventually(t, time.Minute, id+" is shut down", func() bool { return list(t, url)[id].State == "shutdown" })
		if _, _, code := extctl(t, url, "call", serviceCalls[id][0].args[0]); code != 10 && code != 2 {
			t.Errorf("a call to %s, which was stopped: exit %d", id, code)
		}
	}
}

// answeredOnce runs a second instance of each service and checks that each request is answered once. With any queue group
// other than q there would be two answers.
func answeredOnce(t *testing.T, url string, commands map[string][]string) {
	nc := connect(t, url)
	for id, command := range commands {
		second := start(t, nil, command[0], append(command[1:], "--nats-url", url)...)
		eventually(t, time.Minute, "a second "+id, func() bool { return list(t, url)[id].ready() == 2 })
		inbox := nc.NewInbox()
		sub, err := nc.SubscribeSync(inbox)
		if err != nil {
			t.Fatal(err)
		}
		const n = 20
		for range n {
			if err := nc.PublishRequest("ext."+id+".rpc", inbox, []byte(`{"jsonrpc":"2.0","id":"a b","method":"ping"}`)); err != nil {
				t.Fatal(err)
			}
		}
		answers := 0
		for {
			m, err := sub.NextMsg(map[bool]time.Duration{false: time.Minute, true: 300 * time.Millisecond}[answers >= n])
			if err != nil {
				break
			}
			answers++
			if want := `{"jsonrpc":"2.0","id":"a b","result":{}}`; string(m.Data) != want {
				t.Errorf("%s answered %s, want %s", id, m.Data, want)
			}
		}
		if answers != n {
			t.Errorf("two instances of %s gave %d answers to %d requests", id, answers, n)
		}
		second.stop(t, 10*time.Second)
	}
}

// TestGoProtocol tests the Go service's protocol beyond calls and answers.
func TestGoProtocol(t *testing.T) {
	t.Parallel()
	testProtocol(t, "primes", []string{program(t, "primes")})
}

// slow has a call for each service that takes longer than any test.
var slow = map[string]string{
	"primes": `{"jsonrpc":"2.0","id":7,"method":"tools/count","params":{"below":100000000}}`,
	"words":  `{"jsonrpc":"2.0","id":7,"method":"tools/linger","params":{"ms":3600000}}`,
}

// testProtocol tests whether a service follows docs/protocol.md, also for malformed requests and unusual headers.
func testProtocol(t *testing.T, id string, command []string) {
	url, _ := startNATS(t)
	nc := connect(t, url)
	announced, err := nc.SubscribeSync("ext.registry.announce." + id)
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, nil, command[0], append(command[1:], "--nats-url", url)...)
	var a wire.Announce
	if m, err := announced.NextMsg(time.Minute); err != nil || json.Unmarshal(m.Data, &a) != nil || a.Instance == "" {
		t.Fatalf("announced %+v (%v)", a, err)
	}
	subject := "ext." + id + ".rpc"
	ask := func(subject, body string, header map[string]string) (answer struct {
		ID    json.RawMessage
		Error rpc.Error
	}) {
		t.Helper()
		m := nats.NewMsg(subject)
		m.Data = []byte(body)
		for k, v := range header {
			m.Header.Set(k, v)
		}
		got, err := nc.RequestMsg(m, time.Minute)
		if err != nil || json.Unmarshal(got.Data, &answer) != nil {
			t.Fatalf("%s %v: answered %v, %v", body, header, got, err)
		}
		return answer
	}
	eventually(t, time.Minute, "it answers", func() bool {
		_, err := nc.Request(subject, []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`), time.Second)
		return err == nil
	})

	const ping = `{"jsonrpc":"2.0","id":"x","method":"ping"}`
	past := fmt.Sprint(time.Now().Add(-time.Minute).UnixMilli())
	longest := `"` + strings.Repeat("x", 254) + `"`
	tooLong := `"` + strings.Repeat("é", 128) + `"` // 258 bytes
	for _, tt := range []struct {
		body   string
		header map[string]string
		id     string
		code   rpc.Code
		ran    string
	}{
		{body: ping, id: `"x"`},
		{body: `{"jsonrpc":"2.0","id":` + longest + `,"method":"ping"}`, id: longest},
		{body: `{"jsonrpc":"2.0","id":` + tooLong + `,"method":"ping"}`, id: `null`, code: rpc.CodeInvalidRequest},
		{body: `{`, id: `null`, code: rpc.CodeParse},
		{body: "\"\xff\"", id: `null`, code: rpc.CodeParse},
		{body: `{"jsonrpc":"2.0","id":1}`, id: `1`, code: rpc.CodeInvalidRequest},
		{body: `{"jsonrpc":"2.0","id":null,"method":"ping"}`, id: `null`, code: rpc.CodeInvalidRequest},
		{body: `{"jsonrpc":"2.0","id":1,"method":"shutdown"}`, id: `1`, code: rpc.CodeMethodNotFound},
		{body: `{"jsonrpc":"2.0","id":1,"method":"tools/constructor"}`, id: `1`, code: rpc.CodeMethodNotFound},
		{body: `{"jsonrpc":"2.0","id":1,"method":"a\n` + strings.Repeat("b", 1000) + `"}`, id: `1`, code: rpc.CodeMethodNotFound}, // it goes into a header
		{body: ping, header: map[string]string{"Ext-Timeout": "soon"}, id: `"x"`, code: rpc.CodeInvalidRequest},
		{body: ping, header: map[string]string{"Ext-Deadline": past}, id: `"x"`}, // from a caller with a wrong clock
		{body: slow[id], header: map[string]string{"Ext-Timeout": "20"}, id: `7`, code: rpc.CodeTimeout, ran: "maybe"},
	} {
		got := ask(subject, tt.body, tt.header)
		if got.Error.Code != tt.code || string(got.ID) != tt.id && !(tt.code == rpc.CodeInvalidRequest && string(got.ID) == "null") {
			t.Errorf("%s %v: answered id %s, %v; want id %s and code %d", tt.body, tt.header, got.ID, &got.Error, tt.id, tt.code)
		}
		if tt.ran != "" && got.Error.Details().Ran != rpc.Ran(tt.ran) {
			t.Errorf("%s %v: ran %q, want %q", tt.body, tt.header, got.Error.Details().Ran, tt.ran)
		}
	}
	if got := ask(subject+"."+a.Instance, ping, nil); got.Error.Code != 0 {
		t.Errorf("on the instance's subject it answered %v", &got.Error)
	}

	// A cancel message ends its call, even if it arrives before the call.
	cancel := func(call string) {
		t.Helper()
		if err := nc.Publish("ext."+id+".cancel", fmt.Appendf(nil, `{"call_id":%q}`, call)); err != nil {
			t.Fatal(err)
		}
	}
	cancel("early")
	if got := ask(subject, slow[id], map[string]string{"Ext-Call-Id": "early"}); got.Error.Code != rpc.CodeCancelled {
		t.Errorf("a call that had been cancelled answered %v", &got.Error)
	}
	cancelled := make(chan rpc.Error, 1)
	go func() { // ends with the answer
		cancelled <- ask(subject, slow[id], map[string]string{"Ext-Call-Id": "late"}).Error
	}()
	eventually(t, time.Minute, "the cancel", func() bool {
		cancel("late")
		select {
		case e := <-cancelled:
			if e.Code != rpc.CodeCancelled {
				t.Errorf("a call that was cancelled answered %v", &e)
			}
			return true
		default:
			return false
		}
	})

	if err := nc.Publish("ext.registry.request", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := announced.NextMsg(time.Minute); err != nil {
		t.Errorf("no announcement after a request to announce: %v", err)
	}
	shutdowns, err := nc.SubscribeSync("ext.registry.shutdown." + id)
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	p.stop(t, 10*time.Second)
	if m, err := shutdowns.NextMsg(time.Minute); err != nil || !strings.Contains(string(m.Data), a.Instance) {
		t.Errorf("shutdown notice: %v, %v", m, err)
	}
}
