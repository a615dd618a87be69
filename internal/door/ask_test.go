package door

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// lister is an MCP server on the mesh with prompts, resources and templates: its lists by method, and its other answers.
type lister struct {
	b  *bed
	id string

	capabilities string

	mu      sync.Mutex
	lists   map[string]string
	answers map[string]func(params json.RawMessage) (string, error)
}

// newLister puts a server with these lists into the catalog.
func (b *bed) newLister(id, prompts, resources, templates string) *lister {
	l := &lister{b: b, id: id, capabilities: `{"prompts":{},"resources":{"subscribe":true},"completions":{}}`, lists: map[string]string{
		"prompts/list": `{"prompts":[` + prompts + `]}`, "resources/list": `{"resources":[` + resources + `]}`,
		"resources/templates/list": `{"resourceTemplates":[` + templates + `]}`,
	}, answers: map[string]func(json.RawMessage) (string, error){}}
	b.serve(id, func(m *nats.Msg, method string, params json.RawMessage) (string, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if list, ok := l.lists[method]; ok {
			return list, nil
		}
		if f := l.answers[method]; f != nil {
			return f(params)
		}
		return `{"of":"` + id + `","agent":"` + m.Header.Get("Ext-Agent") + `","echo":` + string(params) + `}`, nil
	})
	l.announce("prompts/list", "resources/list", "resources/templates/list")
	b.state(id, heartbeat.Ready, "")
	return l
}

// set changes a list; announce makes the catalog show it.
func (l *lister) set(method, list string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lists[method] = list
}

func (l *lister) announce(methods ...string) {
	l.b.t.Helper()
	l.mu.Lock()
	var lists wire.Lists
	for _, method := range methods {
		of := map[string]**wire.Listing{"prompts/list": &lists.Prompts, "resources/list": &lists.Resources, "resources/templates/list": &lists.Templates}
		*of[method] = &wire.Listing{Count: 1, Digest: wire.ListDigest([]byte(l.lists[method]))}
	}
	l.mu.Unlock()
	l.b.put("spec."+l.id, mesh.Spec{ID: l.id, Version: "1.0.0", Transport: "stdio", Dialect: "mcp", Subject: "ext." + l.id + ".rpc", Server: &wire.Server{
		ProtocolVersion: "2025-11-25", Capabilities: json.RawMessage(l.capabilities), Lists: lists}})
}

// listed runs a Door that has requested all lists.
func (b *bed) listed(o Options) *Door {
	b.t.Helper()
	d := b.door(o)
	natstest.Eventually(b.t, "the door has requested the lists", func() bool { return isClosed(d.listed) })
	return d
}

// list lists everything with a method and returns the values of a member of the entries.
func (p *pipe) list(method, of, member string) string {
	p.t.Helper()
	var r struct {
		Result map[string]json.RawMessage `json:"result"`
	}
	var entries []map[string]json.RawMessage
	if err := json.Unmarshal([]byte(p.ask(`{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`)), &r); err != nil {
		p.t.Fatal(err)
	}
	_ = json.Unmarshal(r.Result[of], &entries)
	var out []string
	for _, e := range entries {
		out = append(out, strings.Trim(string(e[member]), `"`))
	}
	return strings.Join(out, " ")
}

const (
	promptA   = `{"z":1.0, "name":"ask","arguments":[{"name":"city"}]}`
	resourceA = `{"uri":"file:///a/b","name":"b", "size":1.0}`
	templateA = `{"uriTemplate":"file:///a/{name}","name":"t"}`
)

func TestLists(t *testing.T) {
	b := newBed(t)
	b.newLister("one", promptA, resourceA+`,{"uri":"x://bad","title":7,"mimeType":"a/b"},{"uri":7}`, templateA+`,{"uriTemplate":"x://{","name":"u"}`)
	b.newLister("two", promptA, `{"uri":"file:///a/b","name":"n","title":"t"}`, templateA)
	p := b.listed(Options{}).pipe(t)
	if got := p.ask(`{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{` + modernMeta + `}}`); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","ttlMs":`) {
		t.Error(got)
	}
	p.want(`{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`, `{"jsonrpc":"2.0","id":1,"result":{"prompts":[`+
		strings.Replace(promptA, `"ask"`, `"ext_one_ask"`, 1)+`,`+strings.Replace(promptA, `"ask"`, `"ext_two_ask"`, 1)+`]}}`)
	p.want(`{"jsonrpc":"2.0","id":1,"method":"resources/list"}`, `{"jsonrpc":"2.0","id":1,"result":{"resources":[`+resourceA+
		`,{"uri":"mesh://two/`+url.PathEscape("file:///a/b")+`","name":"n (two)","title":"t (two)"},{"uri":"x://bad","mimeType":"a/b","name":"x://bad"}]}}`)
	p.want(`{"jsonrpc":"2.0","id":1,"method":"resources/templates/list"}`, `{"jsonrpc":"2.0","id":1,"result":{"resourceTemplates":[`+templateA+`]}}`)
}

// TestListChanges checks that a list is requested again when the catalog shows another digest, that the clients that asked
// are notified, and that neither a restart nor another digest of the same list notifies anybody.
func TestListChanges(t *testing.T) {
	b := newBed(t)
	l := b.newLister("one", promptA, resourceA, templateA)
	d := b.listed(Options{})
	p := d.pipe(t)
	p.send(`{"jsonrpc":"2.0","id":"s","method":"subscriptions/listen","params":{` + modernMeta + `,"notifications":{"promptsListChanged":true,"toolsListChanged":false}}}`)
	const tagged = `"params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"s"}`
	if got := p.next(); got != `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged",`+tagged+`,"notifications":{"promptsListChanged":true}}}` {
		t.Error(got)
	}
	p.list("prompts/list", "prompts", "name")
	b.state("one", heartbeat.Restarting, "")
	b.state("one", heartbeat.Ready, "")
	l.set("resources/list", `{"resources":[]}`)
	l.announce("prompts/list", "resources/list", "resources/templates/list")
	if got := p.next(); got != `{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}` {
		t.Error(got)
	}
	l.announce("resources/list") // the prompts are gone
	var got []string
	for len(got) < 2 {
		// The templates are gone, too. That notification can come at any time: it is held back for a second after the one before.
		if n := p.next(); !strings.Contains(n, `"notifications/resources/list_changed"`) {
			got = append(got, n)
		}
	}
	if all := strings.Join(got, "\n"); !strings.Contains(all, `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`) ||
		!strings.Contains(all, `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed",`+tagged+`}}`) {
		t.Error(all)
	}
}

// TestListErrors checks that a list that cannot be read does not delay or remove others, and is requested again.
func TestListErrors(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	l := b.newLister("one", promptA, resourceA, templateA)
	l.set("resources/list", `{"resources":{}}`)
	l.announce("prompts/list", "resources/list")
	d := b.listed(Options{})
	p := d.pipe(t)
	if got := p.list("prompts/list", "prompts", "name"); got != "ext_one_ask" {
		t.Errorf("prompts: %s", got)
	}
	if got := p.list("resources/list", "resources", "uri"); got != "" {
		t.Errorf("resources: %s", got)
	}
	l.set("resources/list", `{"resources":[`+resourceA+`]}`)
	natstest.Eventually(t, "the list is requested again", func() bool { return len(d.view.now.Load().lists[resources].keys) == 1 })
}

func TestPrompts(t *testing.T) {
	b := newBed(t)
	b.newLister("one", promptA+`,{"name":"only one"}`, "", "")
	b.newLister("two", promptA, "", "")
	p := b.listed(Options{View: ViewOptions{Names: NamesOwn}, Agent: "ada"}).pipe(t)
	if got := p.list("prompts/list", "prompts", "name"); got != "ext_one_ask ext_one_only_one ext_two_ask" {
		t.Errorf("prompts: %s", got)
	}
	get := func(params string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":` + params + `}`
	}
	p.want(get(`{"name":"ext_two_ask","arguments":{"city":"x"},"n":1.0}`),
		`{"jsonrpc":"2.0","id":1,"result":{"of":"two","agent":"ada","echo":{"name":"ask","arguments":{"city":"x"},"n":1.0}}}`)
	p.want(get(`{"name":"ext_two_ask",`+modernMeta[:len(modernMeta)-1]+`,"progressToken":"p","vendor":1.0}}`),
		`{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","of":"two","agent":"ada","echo":{"name":"ask","_meta":{"vendor":1.0,"progressToken":1}}}}`)
	p.want(get(`{"name":"ext_two_aks"}`), `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"There is no prompt ext_two_aks here. Similar names: ext_two_ask.","data":{"nearest":["ext_two_ask"]}}}`)
	p.want(get(`{"name":7}`), `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"params.name must be a text"}}`)
}

func TestResources(t *testing.T) {
	b := newBed(t)
	one := b.newLister("one", "", resourceA, templateA)
	b.newLister("two", "", `{"uri":"file:///a/b","name":"n"},{"uri":"mesh://nodes","name":"n"},{"uri":"mesh://one/x","name":"n"},{"uri":"users/me","name":"n"}`, `{"uriTemplate":"file:///a/deep/{+path}","name":"t"}`)
	p := b.listed(Options{}).pipe(t)
	read := func(uri, more string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":%q%s}}`, uri, more)
	}
	for uri, want := range map[string][2]string{
		"file:///a/b":     {"one", "file:///a/b"},
		"file:///a/other": {"one", "file:///a/other"}, // of the template
		"mesh://nodes":    {"two", "mesh://nodes"},
		"mesh://one/x":    {"one", "x"},
		"mesh://two/" + url.PathEscape("mesh://one/x"):     {"two", "mesh://one/x"},
		"file:///a/deep/er/x":                              {"two", "file:///a/deep/er/x"},
		"mesh://two/" + url.PathEscape("file:///a/b"):      {"two", "file:///a/b"},
		"mesh://one/" + url.PathEscape("other://not-here"): {"one", "other://not-here"},
		"mesh://two/" + url.PathEscape("users/me"):         {"two", "users/me"}, // listed so, because it is no URI
	} {
		p.want(read(uri, ""), `{"jsonrpc":"2.0","id":1,"result":{"of":"`+want[0]+`","agent":"","echo":{"uri":"`+want[1]+`"}}}`)
	}
	if got := p.ask(`{"jsonrpc":"2.0","id":1,"method":"resources/list"}`); strings.Contains(got, `"mesh://one/x"`) || !strings.Contains(got, `"mesh://two/mesh:%2F%2Fone%2Fx"`) {
		t.Errorf("a URI that names another extension is listed: %s", got)
	} else if strings.Contains(got, `"users/me"`) || !strings.Contains(got, `"mesh://two/users%2Fme"`) {
		t.Errorf("what is no URI is listed: %s", got)
	}
	for _, uri := range []string{"other://not-here", "mesh://no/x", "mesh://one/", "mesh://one/%", "mesh://"} {
		if got := p.ask(read(uri, "")); !strings.Contains(got, `{"code":-32002,"message":"Resource not found: `+uri) {
			t.Errorf("legacy: %s", got)
		}
		if got := p.ask(read(uri, ","+modernMeta)); !strings.Contains(got, `{"code":-32602,"message":"Resource not found: `+uri) || !strings.HasSuffix(got, `"data":{"uri":"`+uri+`"}}}`) {
			t.Errorf("modern: %s", got)
		}
	}
	p.want(read("file:///a/b", ","+modernMeta),
		`{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","of":"one","agent":"","echo":{"uri":"file:///a/b","_meta":{}}}}`)
	one.answers["resources/read"] = func(json.RawMessage) (string, error) {
		return "", &rpc.Error{Code: -32002, Message: "Resource not found", Data: json.RawMessage(`{"uri":"own"}`)}
	}
	p.want(read("file:///a/b", ""), `{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"Resource not found","data":{"uri":"own"}}}`)
	p.want(read("file:///a/b", ","+modernMeta), `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Resource not found","data":{"uri":"file:///a/b"}}}`)
	one.answers["resources/read"] = func(json.RawMessage) (string, error) {
		return "", rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "signal: killed")
	}
	p.want(read("file:///a/b", ""), `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"one stopped while it was running file:///a/b. It can be requested again. The extension restarts automatically, usually within seconds.",`+
		`"data":{"kind":"extension_exited","ran":"maybe","extension":"one","resource":"file:///a/b"}}}`)
}

// TestResourceOfUnavailable: while an extension is not shown, its URI does not mean the resource of another.
func TestResourceOfUnavailable(t *testing.T) {
	b := newBed(t)
	b.newLister("one", "", resourceA, "")
	b.newLister("two", "", resourceA, "")
	d := b.listed(Options{})
	const both, second = "file:///a/b mesh://two/file:%2F%2F%2Fa%2Fb", "mesh://two/file:%2F%2F%2Fa%2Fb"
	list := func() string { return strings.Join(d.view.now.Load().lists[resources].keys, " ") }
	if got := list(); got != both {
		t.Fatal(got)
	}
	b.state("one", heartbeat.Gated, "a variable is missing")
	natstest.Eventually(t, "one is not shown", func() bool { return list() == second })
	read := `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///a/b"}}`
	if got := d.pipe(t).ask(read); !strings.Contains(got, `"of":"one"`) { // where it runs, it would answer that it cannot
		t.Errorf("it is read from another: %s", got)
	}
	b.state("one", heartbeat.Ready, "")
	natstest.Eventually(t, "one is shown", func() bool { return list() == both })

	b.newLister("three", "", `{"uri":"mesh://two/x","name":"n"}`, "")
	natstest.Eventually(t, "three is shown", func() bool { return list() != both })
	b.state("three", heartbeat.Gated, "a variable is missing")
	natstest.Eventually(t, "three is not shown", func() bool { return list() == both })
	if got := d.pipe(t).ask(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"mesh://two/x"}}`); !strings.Contains(got, `"of":"two","agent":"","echo":{"uri":"x"}`) {
		t.Errorf("a URI that names two: %s", got)
	}
}

func TestCompletion(t *testing.T) {
	b := newBed(t)
	b.newLister("one", promptA, "", templateA)
	b.newLister("two", "", "", "")
	p := b.listed(Options{}).pipe(t)
	complete := func(ref string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":` + ref + `,"argument":{"name":"a","value":"b"}}}`
	}
	echo := func(ref string) string {
		return `{"jsonrpc":"2.0","id":1,"result":{"of":"one","agent":"","echo":{"ref":` + ref + `,"argument":{"name":"a","value":"b"}}}}`
	}
	p.want(complete(`{"type":"ref/prompt","name":"ext_one_ask","x":1.0}`), echo(`{"type":"ref/prompt","name":"ask","x":1.0}`))
	p.want(complete(`{"type":"ref/resource","uri":"file:///a/{name}"}`), echo(`{"type":"ref/resource","uri":"file:///a/{name}"}`))
	p.want(complete(`{"type":"ref/resource","uri":"file:///a/x"}`), echo(`{"type":"ref/resource","uri":"file:///a/x"}`))
	for _, bad := range []string{`{"type":"ref/prompt","name":"ask"}`, `{"type":"ref/tool","name":"ask"}`, `{"type":"ref/prompt","name":7}`, `7`, `[]`, `null`} {
		if got := p.ask(complete(bad)); !strings.Contains(got, `"code":-32602`) {
			t.Errorf("%s: %s", bad, got)
		}
	}
	p.want(`{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"ext_one_ask"}}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"params must have ref, an object with type and name or uri, and argument, an object with the texts name and value"}}`)
}

// TestAnswerIsNoObject: an answer of an extension that is no object is an error, because no client accepts it as a result.
func TestAnswerIsNoObject(t *testing.T) {
	b := newBed(t)
	l := b.newLister("one", promptA, resourceA, "")
	p := b.listed(Options{}).pipe(t)
	for method, params := range map[string]string{
		"prompts/get": `{"name":"ext_one_ask"}`, "resources/read": `{"uri":"file:///a/b"}`,
		"completion/complete": `{"ref":{"type":"ref/prompt","name":"ext_one_ask"},"argument":{"name":"a","value":"b"}}`,
	} {
		for _, result := range []string{`"hello"`, "null", "[1]"} {
			l.mu.Lock()
			l.answers[method] = func(json.RawMessage) (string, error) { return result, nil }
			l.mu.Unlock()
			p.want(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`,
				`{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"The extension one answered `+method+` with a result that is no object."}}`)
		}
	}
}

// TestEntryFilters checks that what a view does not show cannot be read, completed or named.
func TestEntryFilters(t *testing.T) {
	b := newBed(t)
	b.newLister("one", promptA+`,{"name":"other"}`, resourceA+`,{"uri":"file:///c/d","name":"d"}`, templateA)
	b.newLister("two", promptA, `{"uri":"file:///a/b","name":"n"}`, "")
	for name, tt := range map[string]struct {
		only, exclude                          []string
		prompts, resources, templates, refused string
	}{
		"an extension":   {[]string{"on*"}, nil, "ext_one_ask ext_one_other", "file:///a/b file:///c/d", "file:///a/{name}", "mesh://two/file:%2F%2F%2Fa%2Fb"},
		"excluded":       {nil, []string{"one"}, "ext_two_ask", "file:///a/b", "", "mesh://one/file:%2F%2F%2Fa%2Fb"},
		"a prompt":       {[]string{"one/prompt:a*"}, nil, "ext_one_ask", "", "", "file:///a/b"},
		"resources":      {[]string{"*/resource:file:///a/*"}, nil, "", "file:///a/b mesh://two/file:%2F%2F%2Fa%2Fb", "", "file:///c/d"},
		"not a resource": {nil, []string{"two", "one/resource:*/d"}, "ext_one_ask ext_one_other", "file:///a/b", "", "file:///c/d"},
		"not a tool":     {nil, []string{"two", "one/ask", "one/file*"}, "ext_one_ask ext_one_other", "file:///a/b file:///c/d", "file:///a/{name}", "mesh://two/x"},
		"of a template":  {nil, []string{"two", "one/resource:file:///a/secret"}, "ext_one_ask ext_one_other", "file:///a/b file:///c/d", "", "file:///a/secret"},
		"escaped":        {nil, []string{"two", "one/resource:file:///a/secret"}, "ext_one_ask ext_one_other", "file:///a/b file:///c/d", "", "file:///a/%73ecret"},
		"another form":   {nil, []string{"two", "one/resource:file:///a/secret"}, "ext_one_ask ext_one_other", "file:///a/b file:///c/d", "", "file://localhost/a/secret"},
	} {
		t.Run(name, func(t *testing.T) {
			p := b.listed(Options{View: ViewOptions{Only: tt.only, Exclude: tt.exclude}}).pipe(t)
			if got := p.list("prompts/list", "prompts", "name"); got != tt.prompts {
				t.Errorf("prompts: %s", got)
			}
			if got := p.list("resources/list", "resources", "uri"); got != tt.resources {
				t.Errorf("resources: %s", got)
			}
			if got := p.list("resources/templates/list", "resourceTemplates", "uriTemplate"); got != tt.templates {
				t.Errorf("templates: %s", got)
			}
			for _, uri := range []string{tt.refused, "mesh://none/x"} {
				if got := p.ask(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"` + uri + `"}}`); !strings.Contains(got, `"code":-32002`) {
					t.Errorf("%s: %s", uri, got)
				}
			}
		})
	}
	only := b.listed(Options{View: ViewOptions{Only: []string{"two"}}}).pipe(t)
	if got := only.ask(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"other://unlisted"}}`); !strings.Contains(got, `"of":"two"`) {
		t.Errorf("of the only extension of the view: %s", got)
	}
	if err := (ViewOptions{Exclude: []string{"a[b/c]"}}).withDefaults().check(); err == nil {
		t.Error("a set of characters with a slash is accepted")
	}
}

// TestPermitsUnlisted: a view whose patterns select resources of an extension passes on no URI that the extension does not list.
func TestPermitsUnlisted(t *testing.T) {
	for _, o := range []ViewOptions{{Only: []string{"x/resource:file:///docs/*"}}, {Exclude: []string{"*/resource:file:///secret"}}} {
		for _, uri := range []string{"file:///docs/a", "file://localhost/secret", "file:///docs/../secret"} {
			if o.permitsUnlisted("x", uri) {
				t.Errorf("%v: %s is passed on", o, uri)
			}
		}
	}
	for _, o := range []ViewOptions{{}, {Exclude: []string{"other", "x/prompt:*", "other/resource:*"}}} {
		for _, uri := range []string{"doc:pub/../secret", "search://web?url=https://b", "web:https://h/a", "repo://f?path=./a"} {
			if !o.permitsUnlisted("x", uri) {
				t.Errorf("%v: %s is refused", o, uri)
			}
		}
	}
}

// TestResourceHeaders checks that the header Mcp-Name is compared with the name of a prompt and the URI of a resource.
func TestResourceHeaders(t *testing.T) {
	b := newBed(t)
	b.newLister("one", promptA, resourceA, "")
	w := b.listed(Options{}).web(t, HTTPOptions{})
	for method, named := range map[string]string{"prompts/get": `"name":"ext_one_ask"`, "resources/read": `"uri":"file:///a/b"`} {
		name := strings.Trim(named[strings.Index(named, ":")+1:], `"`)
		for header, want := range map[string]string{name: `"of":"one"`, "other": `"code":-32020`} {
			body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + named + `,` + modernMeta + `}}`
			got := w.do("POST", "", body, modernHeader(method, header)).body
			if !strings.Contains(got, want) {
				t.Errorf("%s with the header %s: %s", method, header, got)
			}
		}
	}
}

// TestLogMessages checks that a client gets the log messages of its calls from the level on that it has set, and none
// TestProgressPace: a few notifications that were delayed arrive together, and none is dropped. Of a flood, the first ones
// and the last one are sent.
func TestProgressPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		p := &progress{token: []byte("1"), send: func(message []byte) { got = append(got, string(message)) }}
		for n := range 1000 {
			p.receive(json.RawMessage(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":%d}}`, n)))
			if n == 2 && len(got) != 3 {
				t.Errorf("%d of 3 notifications were sent", len(got))
			}
		}
		time.Sleep(time.Second)
		synctest.Wait() // for the timer
		if len(got) != progressBurst+1 || !strings.Contains(got[progressBurst], `"progress":999`) {
			t.Errorf("%d were sent: %q", len(got), got)
		}
		p.end()
	})
}

// without a level.
func TestLogMessages(t *testing.T) {
	b := newBed(t)
	levels := make(chan string, 100)
	b.put("spec.x", mesh.Spec{ID: "x", Version: "1.0.0", Dialect: "mcp", Subject: "ext.x.rpc", Features: []string{"stream"},
		Tools: []mesh.Tool{tool("x", "talk")}, Server: &wire.Server{Capabilities: json.RawMessage(`{"logging":{}}`)}})
	b.state("x", heartbeat.Ready, "")
	b.serve("x", func(m *nats.Msg, _ string, params json.RawMessage) (string, error) {
		levels <- string(params)
		frame := func(level, data string) {
			f := nats.NewMsg(m.Reply)
			f.Header.Set("Ext-Frame", "progress")
			f.Data = []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"` + level + `","data":"` + data + `"}}`)
			_ = m.RespondMsg(f)
		}
		frame("debug", "a")
		frame("error", "b")
		return `{"content":[]}`, nil
	})
	d := b.door(Options{})
	p := d.pipe(t)
	const answer = `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ext_x_talk"}}`
	p.want(call, answer)
	if got := <-levels; strings.Contains(got, "logLevel") {
		t.Errorf("the server got %s", got)
	}
	setLevel := `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":LEVEL}}`
	for _, bad := range []string{`"loud"`, `7`, `null`} {
		if got := p.ask(strings.Replace(setLevel, "LEVEL", bad, 1)); !strings.Contains(got, `"code":-32602`) {
			t.Errorf("%s: %s", bad, got)
		}
	}
	p.want(strings.Replace(setLevel, "LEVEL", `"info"`, 1), `{"jsonrpc":"2.0","id":1,"result":{}}`)
	modern := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ext_x_talk",` + strings.Replace(modernMeta, `{}}`, `{},"io.modelcontextprotocol/logLevel":"info"}`, 1) + `}}`
	for _, request := range []string{call, modern} {
		p.send(request)
		if got := <-levels; !strings.Contains(got, `"io.modelcontextprotocol/logLevel":"info"`) {
			t.Errorf("the server got %s", got)
		}
		if got, want := p.next(), `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"b"}}`; got != want {
			t.Errorf("have %s\nwant %s", got, want)
		}
		if got := p.next(); !strings.Contains(got, `"result"`) {
			t.Error(got)
		}
	}
}

func TestMessageRate(t *testing.T) {
	var got []string
	p := &progress{level: 1, send: func(message []byte) { got = append(got, string(message)) }}
	for range 1000 {
		p.receive(json.RawMessage(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}`))
		p.receive(json.RawMessage(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)) // it has no token
	}
	p.end()
	p.receive(json.RawMessage(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}`))
	if n := len(got); n < burstOf*messageRate || n > 900 || !strings.Contains(got[n-1], "log messages were dropped: there were more than 50 in a second") {
		t.Errorf("%d messages, the last one %s", n, got[n-1])
	}
}
