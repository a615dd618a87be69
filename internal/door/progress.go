package door

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/mcp"
)

// A call may send progressBurst progress notifications at once, and then one every progressEvery. Those between are dropped,
// except the last.
const (
	progressEvery = 50 * time.Millisecond
	progressBurst = 10
)

// progress forwards the progress notifications and the log messages of one call to its client.
type progress struct {
	token []byte       // as the client has written it; nil: it wants no progress
	level mcp.LogLevel // 0: it wants no log messages
	send  func(message []byte)

	mu    sync.Mutex
	value float64 // of the last notification
	begun bool
	pace  *rate.Limiter // nil until the first one
	held  []byte        // the newest one that was not sent yet
	timer *time.Timer   // sends held
	ended bool

	messages *rate.Limiter // nil until the first log message
	dropped  int           // log messages
}

// receive handles a notification of the extension.
func (p *progress) receive(notification json.RawMessage) {
	env, err := jsonrpc.Scan(notification)
	if err == nil && env.MethodName() == mcp.NotifyMessage {
		p.message(env.Params)
		return
	}
	if err != nil || env.MethodName() != mcp.NotifyProgress || p.token == nil {
		return
	}
	at, ok := jsonrpc.Member(env.Params, "progress")
	if !ok {
		return
	}
	value, err := strconv.ParseFloat(string(at.In(env.Params)), 64)
	if err != nil {
		return
	}
	params, ok := jsonrpc.SetMember(env.Params, "progressToken", p.token)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.begun && value <= p.value { // the protocol wants values that increase
		return
	}
	p.begun, p.value = true, value
	p.held = jsonrpc.AppendRequest(nil, nil, mcp.NotifyProgress, mcp.OneLine(bytes.TrimSpace(params)))
	if p.timer != nil {
		return
	}
	if p.pace == nil {
		p.pace = rate.NewLimiter(rate.Every(progressEvery), progressBurst)
	}
	if wait := p.pace.Reserve().Delay(); wait > 0 {
		p.timer = time.AfterFunc(wait, p.due)
		return
	}
	p.flush()
}

// messageRate limits the log messages of a call, per second; four seconds' worth may come at once.
const messageRate = 50

// message forwards a log message that is severe enough.
func (p *progress) message(params []byte) {
	if !p.level.Admits(params) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.messages == nil {
		p.messages = newLimiter(messageRate)
	}
	if !p.messages.Allow() {
		p.dropped++
	} else if !p.ended {
		p.send(jsonrpc.AppendRequest(nil, nil, mcp.NotifyMessage, mcp.OneLine(bytes.TrimSpace(params))))
	}
}

func (p *progress) due() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer = nil; !p.ended {
		p.flush()
	}
}

// flush sends the newest notification. The caller holds mu.
func (p *progress) flush() {
	if p.held != nil {
		p.send(p.held)
		p.held = nil
	}
}

// end sends what is left, so that it precedes the result.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flush()
	if p.dropped > 0 && !p.ended {
		p.send([]byte(fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":{"level":"warning","logger":"extmesh","data":"%d log messages were dropped: there were more than %d in a second"}}`,
			mcp.NotifyMessage, p.dropped, messageRate)))
	}
	p.ended = true
	if p.timer != nil {
		p.timer.Stop()
	}
}
