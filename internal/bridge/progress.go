package bridge

import (
	"bytes"
	"encoding/json"
	"strconv"
	"sync"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/serve"
)

// progress routes a child's progress notifications to the callers that requested them. Two callers may choose the same
// token, so each token is replaced by a number that is unique to the child, and replaced back in the notifications.
type progress struct {
	mu       sync.Mutex
	last     uint64
	requests map[uint64]progressRequest
}

type progressRequest struct {
	token []byte // as the caller sent it: a JSON number or string
	to    serve.ProgressSink
}

// withMeta returns the params of an MCP request with a _meta that is an object, if there is one: some programs write null for a member
// that they have not set, and some servers drop such a request without an answer.
func withMeta(params json.RawMessage) json.RawMessage {
	if !bytes.Contains(params, []byte("_meta")) { // few requests have one
		return params
	}
	if meta, ok := jsonrpc.Member(params, "_meta"); ok && params[meta.From] != '{' {
		return jsonrpc.Splice(params, meta, []byte("{}"))
	}
	return params
}

// register replaces the progress token in params, if there is one. The caller calls done when the call has ended.
func (p *progress) register(params []byte, sink jsonrpc.Sink) (_ []byte, done func()) {
	if !bytes.Contains(params, []byte("progressToken")) && bytes.IndexByte(params, '\\') < 0 { // few calls have one
		return params, nil
	}
	meta, ok := jsonrpc.Member(params, "_meta")
	if !ok {
		return params, nil
	}
	at, ok := jsonrpc.Member(meta.In(params), "progressToken")
	if !ok {
		return params, nil
	}
	at.From, at.To = at.From+meta.From, at.To+meta.From
	to, ok := sink.(serve.ProgressSink)
	if !ok || !jsonrpc.ValidID(at.In(params)) { // nobody's token, so that it cannot be another caller's
		return jsonrpc.Splice(params, at, []byte("0")), nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	n := p.last
	if p.requests == nil {
		p.requests = map[uint64]progressRequest{}
	}
	p.requests[n] = progressRequest{bytes.Clone(at.In(params)), to}
	return jsonrpc.Splice(params, at, strconv.AppendUint(nil, n, 10)), func() {
		p.mu.Lock()
		delete(p.requests, n)
		p.mu.Unlock()
	}
}

// deliver forwards a notifications/progress to the caller that requested it. After the end of the call there is none.
func (p *progress) deliver(params []byte) {
	at, ok := jsonrpc.Member(params, "progressToken")
	if !ok {
		return
	}
	n, ok := jsonrpc.ParseID(at.In(params))
	if !ok {
		return
	}
	p.mu.Lock()
	w, ok := p.requests[n]
	p.mu.Unlock()
	if ok {
		w.to.Progress(jsonrpc.AppendRequest(nil, nil, "notifications/progress", jsonrpc.Splice(params, at, w.token)))
	}
}
