package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/terminal"
)

// progressAfter is how long a call may run before its progress is shown.
const progressAfter = time.Second

// callProgress shows on a terminal how long a call has been running, and the progress that the tool reports.
type callProgress struct {
	mu   sync.Mutex
	last string // what the tool has reported last
}

// report stores a progress notification of the tool.
func (p *callProgress) report(notification json.RawMessage) {
	text := progressText(notification)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = text
}

// notify is the function that gets the tool's progress; nil, which requests none, if stderr is not a terminal.
func (p *callProgress) notify(a *app) func(json.RawMessage) {
	if a.json || !daemon.IsTerminal(a.stderr) {
		return nil
	}
	return p.report
}

// progressText is a progress notification in words: 2 of 4, copying.
func progressText(notification json.RawMessage) string {
	var n struct {
		Params struct {
			Progress json.Number `json:"progress"`
			Total    json.Number `json:"total"`
			Message  string      `json:"message"`
		} `json:"params"`
	}
	if json.Unmarshal(notification, &n) != nil || n.Params.Progress == "" {
		return ""
	}
	text := n.Params.Progress.String()
	if n.Params.Total != "" {
		text += " of " + n.Params.Total.String()
	}
	if n.Params.Message != "" {
		text += ", " + n.Params.Message
	}
	return text
}

// line is the line on the terminal after a call has been running for some time.
func (p *callProgress) line(took time.Duration, width int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := strconv.Itoa(int(took.Seconds())) + " s"
	if p.last != "" {
		text += "  " + p.last
	}
	return terminal.Short(text, max(width-1, 10))
}

// show draws the progress on stderr, if that is a terminal, until stop is called.
func (p *callProgress) show(ctx context.Context, a *app) (stop func()) {
	if a.json || !daemon.IsTerminal(a.stderr) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	began := time.Now()
	go func() { // ends with stop, which waits
		defer close(done)
		tick := time.NewTicker(progressAfter / 4)
		defer tick.Stop()
		drawn := false
		for {
			select {
			case <-ctx.Done():
				if drawn {
					fmt.Fprint(a.stderr, "\r\x1b[K")
				}
				return
			case <-tick.C:
			}
			if took := time.Since(began); took >= progressAfter {
				fmt.Fprintf(a.stderr, "\r\x1b[K%s", p.line(took, terminal.Width(a.stderr)))
				drawn = true
			}
		}
	}()
	return func() { cancel(); <-done }
}
