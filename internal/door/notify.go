package door

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/mcp"
)

// A client is notified of changes at most once in notifyEvery, or more rarely if the list is so large that reading it
// takes longer.
const (
	notifyEvery    = time.Second
	notifyRate     = 4 << 20 // bytes per second
	notifyPerBytes = time.Second / notifyRate
)

// listener is a client, or a subscription of one, that wants to be notified when the list of tools changes.
type listener struct {
	sees func(c *change) bool // whether the change is visible to it
	send func()               // must not block

	mu    sync.Mutex
	last  time.Time   // of the last notification
	timer *time.Timer // of the next one; nil: none is due
	ended bool
}

// listen notifies l of changes until the returned function is called.
func (v *viewState) listen(l *listener) (end func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.listeners[l] = struct{}{}
	return func() {
		v.mu.Lock()
		delete(v.listeners, l)
		v.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ended = true
		if l.timer != nil {
			l.timer.Stop()
		}
	}
}

// change is the change of a view. The lists are compared once, not for each client.
type change struct {
	old, fresh *view
	same       map[*notice]bool
}

// notify notifies the listeners that see a difference.
func (v *viewState) notify(old, fresh *view) {
	c := &change{old, fresh, map[*notice]bool{}}
	for i := range notices {
		c.same[&notices[i]] = notices[i].same(old, fresh)
	}
	v.mu.Lock()
	var due []*listener
	for l := range v.listeners {
		if l.sees(c) {
			due = append(due, l)
		}
	}
	v.mu.Unlock()
	pause := max(notifyEvery, time.Duration(len(fresh.modern.text))*notifyPerBytes)
	for _, l := range due {
		l.changed(pause)
	}
}

// changed sends a notification, now or when pause has passed since the last one.
func (l *listener) changed(pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wait := time.Until(l.last.Add(pause))
	switch {
	case l.ended || l.timer != nil:
	case l.last.IsZero() || wait <= 0:
		l.last = time.Now()
		l.send()
	default:
		l.timer = time.AfterFunc(wait, l.overdue)
	}
}

func (l *listener) overdue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer = nil; !l.ended {
		l.last = time.Now()
		l.send()
	}
}

// notice is a notification that a list has changed.
type notice struct {
	method string
	member string // of subscriptions/listen, which asks for it
	same   func(old, fresh *view) bool
}

var notices = [...]notice{
	{mcp.NotifyToolsChanged, "toolsListChanged", sameList},
	{mcp.NotifyPromptsChanged, "promptsListChanged", sameEntries(prompts)},
	{mcp.NotifyResourcesChanged, "resourcesListChanged", sameEntries(resources, templates)},
}

// sameEntries returns whether two views have the same lists of these kinds.
func sameEntries(kinds ...listKind) func(old, fresh *view) bool {
	return func(old, fresh *view) bool {
		return !slices.ContainsFunc(kinds, func(k listKind) bool { return !bytes.Equal(old.lists[k].text, fresh.lists[k].text) })
	}
}

// concerns reports whether a client sees a change. A list of search tools does not change.
func (n *notice) concerns(c *client, era mcp.Era, of *change) bool {
	if n.method == mcp.NotifyToolsChanged {
		searches := wouldSearch(c, of.fresh, era)
		if searches != wouldSearch(c, of.old, era) {
			return true
		}
		if searches {
			return false
		}
	}
	return !of.same[n]
}

// listen sends the notification to a client until the returned function is called. meta is a member of its params, or "".
func (n *notice) listen(c *client, era mcp.Era, meta string, send func(message []byte)) (end func()) {
	params := ""
	if meta != "" {
		params = `,"params":{` + meta + `}`
	}
	message := []byte(`{"jsonrpc":"2.0","method":"` + n.method + `"` + params + `}`)
	return c.view.listen(&listener{
		sees: func(of *change) bool {
			return (era == mcp.EraModern || c.isLegacy()) && n.concerns(c, era, of)
		},
		send: func() { send(message) },
	})
}

// notifyClient notifies a client of the legacy era of changes, until the returned function is called.
func (c *client) notifyClient(send func(message []byte)) (end func()) {
	c.follower = &follower{client: c, send: send}
	ends := []func(){c.follower.end}
	for i := range notices {
		ends = append(ends, notices[i].listen(c, mcp.EraLegacy, "", send))
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

func (c *client) isLegacy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.legacy
}
