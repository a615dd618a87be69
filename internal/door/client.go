package door

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// client is one MCP client: a process on standard input and output, a session over HTTP, or a single modern HTTP request.
type client struct {
	door        *Door
	view        *viewState
	principal   string // how the client has authenticated; "" if it has not
	natsContext string // with its NATS credentials; "": those of the Door
	session     string // the same for calls that belong together; "" for a modern HTTP request, which is alone
	identities  *identities
	usage       *usage    // of this client, or of all with the same token
	follower    *follower // in a session of the legacy era

	mu       sync.Mutex
	calls    map[string]*call // in flight, by raw id; nil for a modern HTTP request, which is alone
	listens  int
	legacy   bool         // it has listed something in the legacy era, or is initialized, and so gets that era's notifications
	name     string       // from initialize, or of the modern era
	searched bool         // a session of the legacy era has got the search tools
	level    mcp.LogLevel // of the log messages that a session of the legacy era wants
}

func (d *Door) newClient(v *viewState, principal string) *client {
	return &client{door: d, view: v, principal: principal, usage: new(usage), calls: map[string]*call{}}
}

// request is a request of a client, with an id.
type request struct {
	id     []byte
	method string
	raw    []byte // the params
	notify func(message []byte)

	params  mcp.Params
	era     mcp.Era
	running *call // see enter; nil for what is answered without waiting
	failed  bool  // the result is a failure

	traceparent string // from the HTTP header
}

// isCall reports whether an extension answers the request, or the client ends it: it can be cancelled.
func (q *request) isCall() bool {
	switch q.method {
	case mcp.MethodCallTool, mcp.MethodGetPrompt, mcp.MethodReadResource, mcp.MethodComplete:
		return true
	case mcp.MethodListen:
		return q.era == mcp.EraModern
	case mcp.MethodSubscribe:
		return q.era == mcp.EraLegacy
	}
	return false
}

// parse reads the params, and determines the era.
func (q *request) parse() (err *rpc.Error) {
	if q.params, err = mcp.ParseParams(q.raw); err != nil {
		return err
	}
	q.era, err = mcp.Classify(q.method, &q.params.Meta)
	return err
}

// answer returns the response to a parsed request, or nil if the client has cancelled it. It blocks while a tool runs.
func (c *client) answer(ctx context.Context, q *request) []byte {
	result, err := c.serve(ctx, q)
	if err == errNoAnswer {
		return nil
	}
	if err != nil {
		return jsonrpc.AppendError(nil, q.id, err)
	}
	return jsonrpc.AppendResult(make([]byte, 0, len(result)+len(q.id)+64), q.id, result)
}

// errNoAnswer is returned for a request that must not be answered, because the client has cancelled it.
var errNoAnswer = &rpc.Error{Code: rpc.CodeCancelled, Message: "cancelled"}

// serve handles a request and counts it.
func (c *client) serve(ctx context.Context, q *request) ([]byte, *rpc.Error) {
	began := time.Now()
	var result []byte
	err := c.enter(ctx, q)
	if err == nil {
		defer q.running.leave()
		if result, err = c.result(ctx, q); q.running != nil && context.Cause(q.running.ctx) == errCancelled {
			result, err = nil, errNoAnswer
		}
	}
	c.door.metrics.count(q, began, err)
	return result, err
}

func (c *client) result(ctx context.Context, q *request) ([]byte, *rpc.Error) {
	if kind, ok := kindOf(q.method); ok {
		c.door.await(ctx, c.door.listed)
		c.becomesLegacy(q.era)
		return c.listPage(q, kinds[kind].member, &c.view.now.Load().lists[kind].page)
	}
	switch {
	case q.method == mcp.MethodListTools:
		c.door.await(ctx, c.door.whole)
		return c.listTools(q)
	case q.method == mcp.MethodCallTool:
		return tools{c}.callTool(q)
	case q.method == mcp.MethodGetPrompt, q.method == mcp.MethodReadResource, q.method == mcp.MethodComplete:
		return asks{c}.answer(q)
	case q.method == mcp.MethodListSkills && q.era == mcp.EraModern:
		c.door.await(ctx, c.door.whole)
		return c.listPage(q, "skills", &c.view.now.Load().skills.page)
	case q.method == mcp.MethodGetSkill && q.era == mcp.EraModern:
		c.door.awaitReady(ctx)
		return asks{c}.getSkill(q)
	case (q.method == mcp.MethodSubscribe || q.method == mcp.MethodUnsubscribe) && q.era == mcp.EraLegacy:
		return asks{c}.subscribe(q)
	case q.method == mcp.MethodInitialize && q.era == mcp.EraLegacy:
		c.door.awaitReady(ctx) // for the instructions
		return c.initialize(q)
	case q.method == mcp.MethodSetLevel && q.era == mcp.EraLegacy:
		return c.setLevel(q)
	case q.method == mcp.MethodPing && q.era == mcp.EraLegacy:
		return []byte("{}"), nil
	case q.method == mcp.MethodDiscover:
		c.door.awaitReady(ctx)
		return c.discover(), nil
	case q.method == mcp.MethodListen && q.era == mcp.EraModern:
		return c.listen(q)
	}
	return nil, mcp.UnknownMethod(q.method)
}

// isQuick reports whether a request is answered without waiting.
func (c *client) isQuick(q *request) bool {
	if q.isCall() {
		return false
	}
	waits := time.Since(c.door.started) <= c.door.opt.Wait
	if _, ok := kindOf(q.method); ok {
		return !waits || isClosed(c.door.listed)
	}
	switch q.method {
	case mcp.MethodListTools, mcp.MethodListSkills:
		return !waits || isClosed(c.door.whole)
	case mcp.MethodInitialize, mcp.MethodDiscover, mcp.MethodGetSkill:
		return !waits || c.door.isReady()
	}
	return true
}

// capabilities is what the server declares. They do not depend on what the mesh has at the moment, because clients read
// them once.
const capabilities = `"capabilities":{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"completions":{},"logging":{}}`

// modernCapabilities also have the extensions of the protocol.
var modernCapabilities = capabilities[:len(capabilities)-1] + `,"extensions":{"` + mcp.SkillsExtension + `":{}}}`

// initialize begins a session of the legacy era.
func (c *client) initialize(q *request) ([]byte, *rpc.Error) {
	var p struct {
		ProtocolVersion string          `json:"protocolVersion"`
		ClientInfo      json.RawMessage `json:"clientInfo"`
	}
	if err := json.Unmarshal(q.raw, &p); err != nil || p.ProtocolVersion == "" {
		return nil, mcp.NewError(rpc.CodeInvalidParams, "params.protocolVersion must be a protocol version, such as "+mcp.LatestLegacy, nil)
	}
	v := c.view.now.Load()
	c.mu.Lock()
	c.name = mcp.ClientName(p.ClientInfo)
	c.searched, c.level = false, 0
	c.mu.Unlock()
	out := append([]byte(`{"protocolVersion":"`), mcp.Negotiate(p.ProtocolVersion)...)
	out = append(append(out, `",`...), capabilities...)
	out = append(append(out, `,"serverInfo":`...), c.door.serverInfo()...)
	return append(c.appendInstructions(out, v, mcp.EraLegacy), '}'), nil
}

// discover answers server/discover.
func (c *client) discover() []byte {
	out := append([]byte{'{'}, c.cacheable()...)
	out = append(append(out, `"supportedVersions":["`+mcp.Modern+`"],`...), modernCapabilities...)
	out = c.appendInstructions(out, c.view.now.Load(), mcp.EraModern)
	out = append(append(out, `,"_meta":{"`+mcp.MetaServerInfo+`":`...), c.door.serverInfo()...)
	return append(out, '}', '}')
}

func (d *Door) serverInfo() []byte {
	text, err := plainjson.Marshal(struct {
		Name    string `json:"name"`
		Title   string `json:"title"`
		Version string `json:"version"`
	}{"extmesh", "extmesh: the tools of a mesh", d.opt.Version})
	if err != nil { // strings always encode
		panic(err)
	}
	return text
}

func (c *client) appendInstructions(dst []byte, v *view, era mcp.Era) []byte {
	text := v.instructions[0]
	if wouldSearch(c, v, era) {
		text = v.instructions[1]
	}
	switch {
	case c.view.opt.Instructions != "":
	case !c.door.isConnected():
		text = "The tool mesh is not reachable at the moment, so that there are no tools yet. This server keeps trying to connect, and sends a notification when tools are available."
	case !c.door.isReady():
		text = "The catalog of the tool mesh is not available yet, so that there are no tools yet. This server sends a notification when tools are available."
	}
	if text == "" {
		return dst
	}
	return append(append(dst, `,"instructions":`...), mcp.Quote(text)...)
}

// searches reports whether the client gets the search tools instead of a list of all tools. A session of the legacy era keeps
// them. One that has listed all tools gets them when the mesh has grown, which is announced: it may have been starting.
func (c *client) searches(v *view, era mcp.Era) bool {
	searches := wouldSearch(c, v, era)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.searched = c.searched || searches && era == mcp.EraLegacy && len(v.tools) > 0 && c.door.isReady()
	return searches
}

// wouldSearch is searches without a decision.
func wouldSearch(c *client, v *view, era mcp.Era) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if era == mcp.EraLegacy && c.searched {
		return true
	}
	return c.view.opt.searchesFor(v, c.name)
}

// setLevel answers logging/setLevel.
func (c *client) setLevel(q *request) ([]byte, *rpc.Error) {
	at, _ := jsonrpc.Member(q.raw, "level")
	level := mcp.ParseLogLevel(at.In(q.raw))
	if level == 0 {
		return nil, mcp.NewError(rpc.CodeInvalidParams, "params.level must be a level of log messages, such as debug, info, warning or error", nil)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.level = level
	return []byte("{}"), nil
}

// logLevel is the level of the log messages that the client wants while a request is handled, or 0. Without a level that
// it has set, it gets none.
func (q *request) logLevel(c *client, t *callee) mcp.LogLevel {
	level := mcp.ParseLogLevel(q.params.Meta.LogLevel)
	if q.era == mcp.EraLegacy {
		c.mu.Lock()
		level = c.level
		c.mu.Unlock()
	}
	if level == 0 || t.extension.Spec == nil || t.extension.Spec.Server == nil || !t.extension.Spec.Server.Offers("logging") {
		return 0
	}
	return level
}

// metaFor returns the members of _meta that are for the extension, or nil.
func (q *request) metaFor(c *client, t *callee) []byte {
	of := q.params.Meta.ForExtension()
	if level := q.logLevel(c, t); level > 0 {
		of, _ = jsonrpc.SetMember(of, mcp.MetaLogLevel, mcp.Quote(level.String())) // it is an object
	}
	return of
}

// agent is the caller's identity on the mesh.
func (c *client) agent(q *request) string {
	switch {
	case c.principal != "":
		return c.principal
	case c.door.opt.Agent != "":
		return c.door.opt.Agent
	case q.era == mcp.EraModern:
		return mcp.ClientName(q.params.Meta.ClientInfo)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.name
}

// notification handles a message of the client without an id.
func (c *client) notification(method string, params []byte) {
	switch method {
	case mcp.NotifyInitialized:
		c.becomesLegacy(mcp.EraLegacy)
		return
	case mcp.NotifyCancelled:
	default:
		return
	}
	var p struct {
		RequestID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	c.mu.Lock()
	running := c.calls[string(p.RequestID)]
	c.mu.Unlock()
	if running != nil {
		running.cancel(errCancelled)
	}
}
