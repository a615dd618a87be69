package bridge

import (
	"bytes"
	"strconv"
	"sync"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// progress routes a child's progress to the caller that asked for it. Callers choose their tokens by
// themselves, and two may choose the same: on its way to the child each becomes a number of ours, on the way
// back the caller's own again, number or string as it was.
type progress struct {
	mu       sync.Mutex
	last     uint64
	requests map[uint64]progressRequest
}

type progressRequest struct {
	token []byte // raw, as the caller wrote it
	to    mesh.ProgressSink
}

// ask exchanges the progress token in params, if there is one. done is to be called when the call has ended.
func (p *progress) register(params []byte, sink rpc.Sink) (_ []byte, done func()) {
	if !bytes.Contains(params, []byte("progressToken")) { // hardly any call asks
		return params, nil
	}
	to, ok := sink.(mesh.ProgressSink)
	at, found := tokenOf(params)
	if !ok || !found {
		return params, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	n := p.last
	if p.requests == nil {
		p.requests = map[uint64]progressRequest{}
	}
	p.requests[n] = progressRequest{bytes.Clone(at.In(params)), to}
	return rpc.Splice(params, at, strconv.AppendUint(nil, n, 10)), func() {
		p.mu.Lock()
		delete(p.requests, n)
		p.mu.Unlock()
	}
}

// tokenOf finds _meta.progressToken.
func tokenOf(params []byte) (at rpc.Span, ok bool) {
	meta, ok := rpc.Member(params, "_meta")
	if !ok {
		return rpc.Span{}, false
	}
	token, ok := rpc.Member(meta.In(params), "progressToken")
	return rpc.Span{From: meta.From + token.From, To: meta.From + token.To}, ok && rpc.ValidID(token.In(meta.In(params)))
}

// deliver passes a notifications/progress on, and reports whether somebody had asked for it.
func (p *progress) deliver(params []byte) bool {
	at, ok := rpc.Member(params, "progressToken")
	if !ok {
		return false
	}
	n, err := strconv.ParseUint(string(bytes.Trim(at.In(params), `"`)), 10, 64)
	if err != nil {
		return false
	}
	p.mu.Lock()
	w, ok := p.requests[n]
	p.mu.Unlock()
	if ok {
		w.to.Progress(rpc.AppendRequest(nil, nil, "notifications/progress", rpc.Splice(params, at, w.token)))
	}
	return ok
}
