package door

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// updatesBed has the extension one, which sends updates of its resources, and two, which has a resource with the same URI.
func updatesBed(t *testing.T) (b *bed, subscribed chan string) {
	b = newBed(t)
	subscribed = make(chan string, 1000)
	for _, id := range []string{"one", "two"} {
		l := b.newLister(id, "", resourceA, templateA)
		l.answers["resources/subscribe"] = func(params json.RawMessage) (string, error) {
			if strings.Contains(string(params), "bad") {
				return "", &rpc.Error{Code: -32002, Message: "no such resource"}
			}
			subscribed <- id + " " + string(params)
			return "{}", nil
		}
	}
	mute := b.newLister("mute", "", `{"uri":"mute://a","name":"m"}`, "")
	mute.capabilities = `{"resources":{}}`
	mute.announce("resources/list")
	return b, subscribed
}

func (b *bed) publish(id, uri string) {
	b.t.Helper()
	if err := b.nc.Publish("ext."+id+".event", []byte(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"`+uri+`","n":1.0}}`)); err != nil {
		b.t.Fatal(err)
	}
}

const updatedA = `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a/b","n":1.0}}`

func TestSubscribe(t *testing.T) {
	b, subscribed := updatesBed(t)
	d := b.listed(Options{View: ViewOptions{Exclude: []string{"one/resource:file:///a/b/secret"}}})
	p, other := d.pipe(t), d.pipe(t)
	subscribe := func(method, uri string) string {
		return p.ask(`{"jsonrpc":"2.0","id":1,"method":"resources/` + method + `","params":{"uri":"` + uri + `"}}`)
	}
	const done = `{"jsonrpc":"2.0","id":1,"result":{}}`
	const second = "mesh://two/file:%2F%2F%2Fa%2Fb"
	for _, uri := range []string{"file:///a/b", "file:///a/b", second} {
		if got := subscribe("subscribe", uri); got != done {
			t.Fatalf("%s: %s", uri, got)
		}
	}
	for _, want := range []string{`one {"uri":"file:///a/b"}`, `one {"uri":"file:///a/b"}`, `two {"uri":"file:///a/b"}`} {
		if got := <-subscribed; got != want {
			t.Errorf("the extension got %s, want %s", got, want)
		}
	}
	natstest.Eventually(t, "NATS has the subscriptions", func() bool { return b.subscribers("ext.one.event") && b.subscribers("ext.two.event") })
	for _, step := range [][3]string{
		{"one", "file:///other", ""},
		{"one", "file:///a/b/secret", ""},
		{"one", "file:///a/b", updatedA},
		{"two", "file:///a/b", strings.Replace(updatedA, "file:///a/b", second, 1)},
		{"one", "file:///a/b/below", ""}, // it is in no list, and there is a pattern for resources
		{"two", "file:///a/b/below", strings.Replace(updatedA, "file:///a/b", second+"%2Fbelow", 1)},
	} {
		if b.publish(step[0], step[1]); step[2] == "" {
			continue // the next notification is not this one
		}
		if got := p.next(); got != step[2] {
			t.Errorf("%s %s\nhave %s\nwant %s", step[0], step[1], got, step[2])
		}
	}
	for uri, want := range map[string]string{"file:///a/bad": `"code":-32002`, "no://such": `"code":-32002`, "mute://a": "mute does not send updates", "file:///a/b/secret": `"code":-32002`} {
		if got := subscribe("subscribe", uri); !strings.Contains(got, want) {
			t.Errorf("%s: %s", uri, got)
		}
	}
	for _, uri := range []string{"file:///a/b", second, "never"} {
		if got := subscribe("unsubscribe", uri); got != done {
			t.Errorf("%s: %s", uri, got)
		}
	}
	natstest.Eventually(t, "NATS has no subscriptions", func() bool { return !b.subscribers("ext.one.event") && !b.subscribers("ext.two.event") })
	other.want(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{`+modernMeta+`,"uri":"file:///a/b"}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found: resources/subscribe"}}`)
}

// TestSubscribeDenied: a server that may not receive updates does not say that the mesh is away.
func TestSubscribeDenied(t *testing.T) {
	b, _ := updatesBed(t)
	d := b.listed(Options{})
	base := d.mesh.Load()
	d.Attach(base.catalog, base.client, func(string, func([]byte)) (func(), error) { return nil, mesh.ErrDenied })
	if got := d.pipe(t).ask(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"file:///a/b"}}`); !strings.Contains(got, "NATS does not let this server receive them") {
		t.Error(got)
	}
}

// TestListenToResources checks subscriptions of the modern era: the client learns which of them are kept, and gets updates
// with the id of its request until it cancels that.
func TestListenToResources(t *testing.T) {
	b, subscribed := updatesBed(t)
	p := b.listed(Options{}).pipe(t)
	const meta = `"_meta":{"io.modelcontextprotocol/subscriptionId":7}`
	p.want(`{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{`+modernMeta+`,"notifications":{"resourceSubscriptions":["file:///a/b","no://such","mute://a","file:///a/b"]}}}`,
		`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{`+meta+`,"notifications":{"resourceSubscriptions":["file:///a/b"]}}}`)
	if got := <-subscribed; got != `one {"uri":"file:///a/b"}` {
		t.Errorf("the extension got %s", got)
	}
	b.publish("one", "file:///a/b")
	if got, want := p.next(), strings.Replace(updatedA, `"n":1.0`, `"n":1.0,`+meta, 1); got != want {
		t.Errorf("have %s\nwant %s", got, want)
	}
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
	natstest.Eventually(t, "NATS has no subscription", func() bool { return !b.subscribers("ext.one.event") })
	p.want(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"result":{}}`)
}

// TestUpdateBeforeAcknowledgement: an update that comes before the acknowledgement of its subscription is sent after it.
func TestUpdateBeforeAcknowledgement(t *testing.T) {
	b, _ := updatesBed(t)
	d := b.listed(Options{})
	base := d.mesh.Load()
	var receive func([]byte)
	d.Attach(base.catalog, base.client, func(_ string, r func([]byte)) (func(), error) { receive = r; return func() {}, nil })
	sent := make(chan string, 2)
	q := &request{id: []byte("7"), method: mcp.MethodListen, raw: []byte(`{` + modernMeta + `,"notifications":{"resourceSubscriptions":["file:///a/b"]}}`)}
	q.notify = func(message []byte) {
		if strings.Contains(string(message), mcp.NotifyAcknowledged) {
			begun := make(chan struct{})
			go func() { // ends when the update is sent
				close(begun)
				receive([]byte(updatedA))
			}()
			<-begun
			<-time.After(20 * time.Millisecond) // time in which it must not be sent
		}
		sent <- string(message)
	}
	if err := q.parse(); err != nil {
		t.Fatal(err)
	}
	run(t, func(ctx context.Context) { d.newClient(d.view, "").answer(ctx, q) })
	for _, want := range []string{mcp.NotifyAcknowledged, mcp.NotifyUpdated} {
		if got := <-sent; !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestFollowLimits checks the bounds, and that nothing is left when a client ends.
func TestFollowLimits(t *testing.T) {
	d, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	open := map[string]bool{}
	d.mesh.Store(&backend{events: func(id string, _ func([]byte)) (func(), error) {
		open[id] = true
		return func() { delete(open, id) }, nil
	}})
	var all []*follower
	for range maxFollowedOfDoor / maxFollowed {
		f := &follower{client: d.newClient(d.view, "")}
		all = append(all, f)
		for i := range maxFollowed {
			if _, _, err := f.add(fmt.Sprint("u", i), followed{id: fmt.Sprint("e", i%10), uri: "u"}); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := f.add("more", followed{id: "e1", uri: "u"}); err == nil {
			t.Fatal("a client has too many subscriptions")
		}
		if _, known, err := f.add("u1", followed{id: "e1", uri: "u"}); !known || err != nil {
			t.Fatal("the same resource is another one")
		}
	}
	if _, _, err := (&follower{client: d.newClient(d.view, "")}).add("u", followed{id: "e1", uri: "u"}); err == nil || len(open) != 10 {
		t.Errorf("the door has too many subscriptions, to %d extensions", len(open))
	}
	for _, f := range all {
		f.end()
	}
	if _, _, err := all[0].add("u", followed{id: "e1", uri: "u"}); err == nil || len(open) > 0 || d.updates.count != 0 {
		t.Errorf("%v: %v are open, %d counted", err, open, d.updates.count)
	}
}

// TestSubscribeAgain: while a request to follow a resource is under way, a second one comes, or the end of the subscription.
func TestSubscribeAgain(t *testing.T) {
	d, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	d.mesh.Store(&backend{events: func(string, func([]byte)) (func(), error) { return func() {}, nil }})
	for name, tt := range map[string]struct {
		steps string // a and b begin a request, A and B are successes, x and y failures of them, u ends the subscription
		want  bool
	}{
		"fails":                      {"ax", false},
		"succeeds":                   {"aA", true},
		"the first is cancelled":     {"abxB", true},
		"cancelled after the second": {"abBx", true},
		"the second fails":           {"abAy", true},
		"the second fails first":     {"abyA", true},
		"both fail":                  {"abxy", false},
		"again after the end":        {"aubBx", true},
		"succeeds after the end":     {"auA", false},
		"renewed in vain":            {"aAby", true},
	} {
		f := &follower{client: d.newClient(d.view, "")}
		turns := map[rune]int{}
		for _, step := range tt.steps {
			switch step {
			case 'a', 'b':
				if turns[step], _, _ = f.add("u", followed{id: "e", uri: "u"}); turns[step] == 0 {
					t.Fatal("not added")
				}
			case 'A', 'B':
				f.settle("u", turns[step-'A'+'a'], true)
			case 'x', 'y':
				f.settle("u", turns[step-'x'+'a'], false)
			case 'u':
				f.remove("u")
			}
		}
		if _, known := f.resources["u"]; known != tt.want {
			t.Errorf("%s: followed: %t", name, known)
		}
		f.end()
	}
	f := &follower{client: d.newClient(d.view, "")}
	first, _, _ := f.add("u", followed{id: "e", uri: "u"})
	second, _, _ := f.add("u", followed{id: "other", uri: "u"}) // it has another owner now
	f.settle("u", first, true)
	if to := f.resources["u"]; to.id != "other" || to.turn != second || to.settled || d.updates.sources["e"] != nil {
		t.Errorf("%+v is followed", to)
	}
	f.end()
}

// TestUpdateBelow: the URI in the update of a resource that is in no list can be read.
func TestUpdateBelow(t *testing.T) {
	b := newBed(t)
	b.newLister("one", "", resourceA, "")
	b.newLister("two", "", `{"uri":"dir://d","name":"d"}`, "")
	p := b.listed(Options{}).pipe(t)
	p.want(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"dir://d"}}`, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	b.publish("two", "dir://d/x")
	const uri = "mesh://two/dir:%2F%2Fd%2Fx"
	if got := p.next(); !strings.Contains(got, `"uri":"`+uri+`"`) {
		t.Errorf("the update is %s", got)
	}
	if got := p.ask(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"` + uri + `"}}`); !strings.Contains(got, `"of":"two"`) {
		t.Errorf("it reads %s", got)
	}
}

// TestRenewal checks that subscriptions are repeated while a client has them.
func TestRenewal(t *testing.T) {
	b, subscribed := updatesBed(t)
	d := b.listed(Options{})
	f := &follower{client: d.newClient(d.view, "")}
	if _, _, err := f.add("file:///a/b", followed{id: "one", uri: "file:///a/b"}); err != nil {
		t.Fatal(err)
	}
	if !f.renewOne(t.Context(), "", followed{id: "one", uri: "file:///a/b"}) || <-subscribed != `one {"uri":"file:///a/b"}` {
		t.Error("the subscription was not repeated")
	}
	b.state("one", "restarting", "")
	natstest.Eventually(t, "the extension is away", func() bool { return !f.renewOne(t.Context(), "", followed{id: "one", uri: "file:///a/b"}) })
	if f.renewOne(t.Context(), "", followed{id: "gone", uri: "x"}) {
		t.Error("an extension that does not exist was asked")
	}
	f.keep()
	f.end()
	natstest.Eventually(t, "it has ended", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.stop == nil })
}

// TestUpdatesOfContext: a client with NATS credentials of its own gets the updates of an extension when it has subscribed there
// with them.
func TestUpdatesOfContext(t *testing.T) {
	d := runDoor(t, Options{})
	var sent []string
	f := &follower{client: d.newClient(d.view, "ada"), send: func(message []byte) { sent = append(sent, string(message)) },
		resources: map[string]followed{"u": {id: "x", uri: "u", turn: 1}}}
	for _, natsContext := range []string{"", "ada.json"} {
		f.client.natsContext = natsContext
		f.updated("x", "u", []byte(`{"uri":"u"}`))
	}
	if len(sent) != 1 {
		t.Errorf("before it has subscribed: %q", sent)
	}
	if f.renewed("u", 1); len(sent) != 2 || sent[1] != sent[0] {
		t.Errorf("when it has, the update before that: %q", sent)
	}
	f.renewed("u", 1)
	if f.updated("x", "u", []byte(`{"uri":"u"}`)); len(sent) != 3 {
		t.Errorf("after that: %q", sent)
	}
}

// TestFollowedOfToken: the clients with one token cannot follow so many resources that the others can follow none.
func TestFollowedOfToken(t *testing.T) {
	from := &backend{events: func(string, func([]byte)) (func(), error) { return func() {}, nil }}
	var u updates
	for principal, want := range map[string]error{"a": errFull, "": nil} {
		f := &follower{client: &client{principal: principal, usage: &usage{followed: maxFollowedOfDoor / 2}}}
		if err := u.add(from, "x", f); err != want {
			t.Errorf("with the token %q: %v", principal, err)
		}
	}
}
