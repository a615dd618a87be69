package bridge

import (
	"bytes"
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

// register replaces the progress token in params, if there is one. The caller calls done when the call has ended.
func (p *progress) register(params []byte, sink jsonrpc.Sink) (_ []byte, done func()) {
	if !bytes.Contains(params, []byte("_meta")) && bytes.IndexByte(params, '\\') < 0 { // few calls have one
		return params, nil
	}
	meta, ok := jsonrpc.Member(params, "_meta")
	switch {
	case !ok:
		return params, nil
	case params[meta.From] != '{': // null for a member that is not set; some servers drop such a request without an answer
		return jsonrpc.Splice(params, meta, []byte("{}")), nil
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
