package door

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// The limits of subscriptions to resources.
const (
	maxFollowed       = 100              // of a client, or of one subscriptions/listen
	maxFollowedOfDoor = 10_000           // the clients with one token have at most half
	followEvery       = 30 * time.Second // between two renewals; a bridge ends a subscription after 90 s
	followTimeout     = 5 * time.Second  // of one renewal
)

// Events passes the notifications that an extension sends without a request to receive, one at a time, until stop is
// called. They are published on the subject <prefix>.<id>.event.
type Events func(id string, receive func(notification []byte)) (stop func(), err error)

// updates passes the updates of resources to the followers. It receives an extension's notifications while there is a
// follower of one of its resources.
type updates struct {
	mu      sync.Mutex
	sources map[string]*source // by the extension's id
	count   int                // of followed resources
}

// source is an extension whose notifications are received.
type source struct {
	from  *backend
	stop  func()
	users map[*follower]int // with the number of their resources
}

// errFull is returned by add if too many resources are followed.
var errFull = errors.New("too many subscriptions")

// add passes the updates of an extension to f.
func (u *updates) add(from *backend, id string, f *follower) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.count >= maxFollowedOfDoor || f.client.principal != "" && f.client.usage.followed >= maxFollowedOfDoor/2 {
		return errFull
	}
	s := u.sources[id]
	if s == nil {
		s = &source{users: map[*follower]int{}}
	}
	if err := u.connect(s, from, id); err != nil {
		return err
	}
	if u.sources == nil {
		u.sources = map[string]*source{}
	}
	u.sources[id] = s
	s.users[f]++
	u.count++
	f.client.usage.followed++
	return nil
}

// connect makes a source use a connection to the mesh. The caller holds mu.
func (u *updates) connect(s *source, from *backend, id string) error {
	switch {
	case from == nil || from.events == nil:
		return errNotConnected
	case s.from == from:
		return nil
	}
	stop, err := from.events(id, func(notification []byte) { u.receive(s, id, notification) })
	if err != nil {
		return err
	}
	if s.stop != nil {
		s.stop()
	}
	s.from, s.stop = from, stop
	return nil
}

var errNotConnected = errors.New("there is no connection to the mesh")

// reconnect makes the sources use another connection to the mesh.
func (u *updates) reconnect(from *backend, logger *slog.Logger) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, s := range u.sources {
		if err := u.connect(s, from, id); err != nil { // NATS denies it to this user, or the connection has ended and another one follows
			logger.Warn("updates of resources are not received", "extension", id, "error", err)
		}
	}
}

func (u *updates) remove(id string, f *follower) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.sources[id]
	u.count--
	f.client.usage.followed--
	if s.users[f]--; s.users[f] == 0 {
		delete(s.users, f)
	}
	if len(s.users) == 0 {
		s.stop()
		delete(u.sources, id)
	}
}

// receive passes an update on.
func (u *updates) receive(s *source, id string, notification []byte) {
	env, err := jsonrpc.Scan(notification)
	if err != nil || env.MethodName() != mcp.NotifyUpdated {
		return
	}
	var p struct {
		URI string `json:"uri"`
	}
	if json.Unmarshal(env.Params, &p) != nil || p.URI == "" {
		return
	}
	u.mu.Lock()
	users := make([]*follower, 0, len(s.users))
	for f := range s.users {
		users = append(users, f)
	}
	u.mu.Unlock()
	for _, f := range users {
		f.updated(id, p.URI, mcp.OneLine(env.Params))
	}
}

// followed is a resource with the URI that its extension uses.
type followed struct {
	id, uri string
	turn    int  // differs after the subscription has ended and begun again
	pending int  // requests for it
	settled bool // a request for it has succeeded
	missed  bool // an update came before that, which a client with NATS credentials of its own may not be permitted to get
}

// follower is the resources that a client follows, or one subscriptions/listen.
type follower struct {
	client *client
	meta   string // _meta of the notifications, or ""
	send   func(message []byte)

	mu        sync.Mutex
	resources map[string]followed // by the URI that the client uses
	turns     int
	stop      context.CancelFunc // of renewal; nil: none
	ended     bool
}

// add follows a resource until settle is called with the turn. known reports that it was followed before.
func (f *follower) add(uri string, to followed) (turn int, known bool, e *rpc.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was, known := f.resources[uri]
	if known && was.id == to.id && was.uri == to.uri {
		was.pending++
		f.resources[uri] = was
		return was.turn, true, nil
	}
	f.removeLocked(uri) // the URI has another owner now
	err := errFull
	if !f.ended && len(f.resources) < maxFollowed {
		err = f.client.door.updates.add(f.client.door.mesh.Load(), to.id, f)
	}
	switch {
	case err == nil:
	case errors.Is(err, mesh.ErrDenied):
		return 0, false, mcp.NewError(rpc.CodeInvalidRequest, "updates of this resource are not available: NATS does not let this server receive them", nil)
	case err == errFull:
		return 0, false, mcp.NewError(rpc.CodeInvalidRequest, "too many subscriptions to resources: end one of them first", nil)
	default:
		return 0, false, unreachable(&callee{noun: nounResource, name: uri}).error()
	}
	if f.resources == nil {
		f.resources = map[string]followed{}
	}
	f.turns++
	to.turn, to.pending = f.turns, 1
	f.resources[uri] = to
	return to.turn, false, nil
}

// settle ends a request to follow a resource. If it has failed, the resource is not followed any more, unless another request
// has succeeded or is under way: a client that has lost patience sends the second one before the first one ends.
func (f *follower) settle(uri string, turn int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	to, known := f.resources[uri]
	if !known || to.turn != turn {
		return
	}
	to.pending--
	f.resources[uri] = to
	if ok {
		f.settledLocked(uri)
	} else if to.pending == 0 && !to.settled {
		f.removeLocked(uri)
	}
}

// settledLocked notes that an extension has accepted a request, and sends the update that came before. The caller holds mu.
func (f *follower) settledLocked(uri string) {
	to := f.resources[uri]
	missed := to.missed
	to.settled, to.missed = true, false
	f.resources[uri] = to
	if missed {
		f.notify([]byte("{}"), uri)
	}
}

func (f *follower) remove(uri string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removeLocked(uri)
}

func (f *follower) removeLocked(uri string) {
	if to, ok := f.resources[uri]; ok {
		delete(f.resources, uri)
		f.client.door.updates.remove(to.id, f)
	}
	if len(f.resources) == 0 && f.stop != nil {
		f.stop()
		f.stop = nil
	}
}

// keep renews the subscriptions in the background, while there are some.
func (f *follower) keep() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stop == nil && len(f.resources) > 0 {
		ctx, stop := context.WithCancel(context.Background())
		f.stop = stop
		go f.renew(ctx, false) // ends with the last subscription, or with end
	}
}

// end stops following.
func (f *follower) end() {
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	for uri := range f.all() {
		f.remove(uri)
	}
}

// all returns a copy of what is followed.
func (f *follower) all() map[string]followed {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]followed, len(f.resources))
	for uri, to := range f.resources {
		out[uri] = to
	}
	return out
}

// concerned returns the followed resources of an extension that have a URI, or that the URI is below.
func (f *follower) concerned(id, uri string) (out map[string]followed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for as, to := range f.resources {
		if to.id == id && (to.uri == uri || strings.HasPrefix(uri, strings.TrimSuffix(to.uri, "/")+"/")) {
			if out == nil {
				out = map[string]followed{}
			}
			out[as] = to
		}
	}
	return out
}

// renew repeats the subscriptions at the extensions until ctx ends, with the credentials of the client. Those that fail are
// tried again the next time.
func (f *follower) renew(ctx context.Context, now bool) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		if !now {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
		now = false
		hung := map[string]bool{} // extensions that have not answered in time
		for uri, to := range f.all() {
			if !hung[to.id] {
				hung[to.id] = !f.renewOne(ctx, uri, to)
			}
		}
	}
}

// renewOne reports whether the request can be sent again soon.
func (f *follower) renewOne(ctx context.Context, uri string, to followed) bool {
	ctx, cancel := context.WithCancel(ctx) // a call that times out would count against the extension, which may be busy
	defer cancel()
	defer time.AfterFunc(followTimeout, cancel).Stop()
	b, err := f.client.mesh(ctx)
	if err != nil {
		return false
	}
	if e, ok := b.catalog.Get(to.id); !ok || !e.State.Available {
		return false
	}
	if _, err = b.client.CallExt(ctx, to.id, mcp.MethodSubscribe, uriParams(to.uri)); err == nil {
		f.renewed(uri, to.turn)
	} else if ctx.Err() == nil {
		f.client.door.opt.Logger.Debug("a subscription to a resource was not renewed", "extension", to.id, "error", err)
	}
	return ctx.Err() == nil
}

// renewed notes that the extension has accepted a subscription.
func (f *follower) renewed(uri string, turn int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if to, known := f.resources[uri]; known && to.turn == turn {
		f.settledLocked(uri)
	}
}

func uriParams(uri string) []byte { return append(append([]byte(`{"uri":`), mcp.Quote(uri)...), '}') }

// uriOf returns a URI with which the view's clients can read a resource of an extension, preferably the extension's own.
func (s *viewState) uriOf(id, own string) (uri string, ok bool) {
	v := s.now.Load()
	of, _, ok := v.owner(s.opt, own)
	if !ok {
		of, ok = s.links.owner(v, s.opt, own)
	}
	if ok && of == id {
		return own, true
	}
	uri = namedURI(id, own)
	of, _, ok = v.owner(s.opt, uri)
	return uri, ok && of == id
}

// updated sends the notification about a resource that the client follows, or about one below it.
func (f *follower) updated(id, uri string, params []byte) {
	known, found := "", false
	for as, to := range f.concerned(id, uri) {
		switch {
		case !to.settled && f.client.natsContext != "": // NATS may deny the client this extension
			if to.uri == uri {
				f.miss(as)
			}
		case to.uri == uri:
			known, found = as, true
		case !found:
			if below, ok := f.client.view.uriOf(id, uri); ok && as == to.uri {
				known = below
			} else if ok {
				known = namedURI(id, uri)
			}
		}
	}
	if known == "" {
		return
	}
	f.notify(params, known)
}

// miss notes an update that is sent when the extension has accepted the subscription.
func (f *follower) miss(uri string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if to, known := f.resources[uri]; known && !to.settled {
		to.missed = true
		f.resources[uri] = to
	}
}

// notify sends a notification with these params, which are an object, about a resource.
func (f *follower) notify(params []byte, uri string) {
	params, _ = jsonrpc.SetMember(params, "uri", mcp.Quote(uri))
	if f.meta != "" {
		params, _ = jsonrpc.SetMember(params, "_meta", []byte(f.meta))
	}
	f.send(jsonrpc.AppendRequest(nil, nil, mcp.NotifyUpdated, params))
}

// sendsUpdates reports whether a server sends updates of its resources.
func sendsUpdates(s *wire.Server) bool {
	var c struct {
		Resources struct {
			Subscribe bool `json:"subscribe"`
		} `json:"resources"`
	}
	return s != nil && json.Unmarshal(s.Capabilities, &c) == nil && c.Resources.Subscribe
}

// subscribe answers resources/subscribe and resources/unsubscribe.
func (c asks) subscribe(q *request) ([]byte, *rpc.Error) {
	uri, err := q.params.Text("uri", q.params.URI)
	if err != nil {
		return nil, err
	}
	if q.method == mcp.MethodUnsubscribe {
		c.follower.remove(uri)
		return []byte("{}"), nil
	}
	c.door.await(q.running.ctx, c.door.listed)
	if e := c.view.now.Load().lists[resources].byKey[uri]; e != nil && e.skill != nil {
		return nil, mcp.NewError(rpc.CodeInvalidParams, "there are no updates of skills.", map[string]any{"uri": uri})
	}
	t, own, err := c.resource(q.era, uri)
	if err != nil {
		return nil, err
	}
	if !sendsUpdates(t.extension.Spec.Server) {
		return nil, mcp.NewError(rpc.CodeInvalidParams, t.id+" does not send updates of its resources.", map[string]any{"uri": uri})
	}
	if limit, yes := c.isOverloaded(); yes {
		q.failed = true
		return nil, overloaded(t, limit).error()
	}
	turn, _, err := c.follower.add(uri, followed{id: t.id, uri: own})
	if err != nil {
		return nil, err
	}
	_, f, err := c.send(q.running, q, t, mesh.ToolCall{Tool: t.id, Method: mcp.MethodSubscribe, Arguments: uriParams(own)})
	if f != nil {
		q.failed = true
		err = f.error()
	}
	c.follower.settle(uri, turn, err == nil)
	if err != nil {
		return nil, err
	}
	c.follower.keep()
	return []byte("{}"), nil
}

// follow makes f follow those of the resources that the client may read and whose extensions send updates. It returns
// their URIs.
func (c asks) follow(f *follower, uris []string) []string {
	out := []string{}
	for _, uri := range uris {
		t, own, err := c.resource(mcp.EraModern, uri)
		if err != nil || !sendsUpdates(t.extension.Spec.Server) {
			continue
		}
		if _, known, err := f.add(uri, followed{id: t.id, uri: own}); err == nil && !known {
			out = append(out, uri)
		}
	}
	return out
}
