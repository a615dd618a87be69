package bridge

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// updatesBed is a forwarder to a server that sends updates of resources; it refuses those in bad.
func updatesBed(capabilities string, bad ...string) (*scriptedLink, *forwarder) {
	l := &scriptedLink{answer: func(x *jsonrpc.Exchange) (jsonrpc.Reply, bool) {
		for _, uri := range bad {
			if strings.Contains(string(x.Params), `"`+uri+`"`) {
				return jsonrpc.NewReply(nil, &rpc.Error{Code: -32002, Message: "no such resource"}), true
			}
		}
		return jsonrpc.NewReply(json.RawMessage("{}"), nil), true
	}}
	f := testForwarder(l)
	f.updates = &subscriptions{workload: &workload{}, to: l, publish: func(n []byte) error { l.published = append(l.published, string(n)); return nil }}
	f.handshake.Store(&handshake{dialect: "mcp", raw: json.RawMessage(`{"capabilities":` + capabilities + `}`)})
	return l, f
}

const sendsUpdates = `{"resources":{"subscribe":true}}`

func (s *scriptedLink) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := s.sent
	s.sent = nil
	slices.Sort(sent)
	return sent
}

func TestSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := updatesBed(sendsUpdates, "bad")
		subscribe := func(uri string) error {
			result, err := f.Handle(t.Context(), &rpc.Request{Method: "resources/subscribe", Params: json.RawMessage(`{"uri":"` + uri + `","_meta":{}}`)})
			if err == nil && string(result) != "{}" {
				t.Errorf("the result is %s", result)
			}
			return err
		}
		want := func(step string, sent ...string) {
			t.Helper()
			if got := l.take(); !slices.Equal(got, sent) {
				t.Errorf("%s: the server got %q, want %q", step, got, sent)
			}
		}
		for range 3 {
			if err := subscribe("a"); err != nil {
				t.Fatal(err)
			}
		}
		want("three callers", `resources/subscribe {"uri":"a"}`)
		if err := subscribe("bad"); rpc.AsError(err).Code != -32002 {
			t.Errorf("a refused subscription: %v", err)
		}
		_ = subscribe("bad")
		want("refused", `resources/subscribe {"uri":"bad"}`, `resources/subscribe {"uri":"bad"}`)
		if len(l.published) != 0 {
			t.Errorf("a new subscription publishes %q", l.published)
		}
		time.Sleep(60 * time.Second)
		_ = subscribe("a")
		_ = subscribe("b")
		time.Sleep(60 * time.Second)
		want("renewed", `resources/subscribe {"uri":"b"}`)
		next, _ := updatesBed(sendsUpdates)
		f.updates.resume(next) // the server was restarted
		if got := next.take(); !slices.Equal(got, []string{`resources/subscribe {"uri":"a"}`, `resources/subscribe {"uri":"b"}`}) {
			t.Errorf("after a restart the server got %q", got)
		}
		if slices.Sort(l.published); len(l.published) != 2 || !strings.Contains(l.published[0], `"notifications/resources/updated","params":{"uri":"a"}`) {
			t.Errorf("after a restart the callers got %q", l.published)
		}
		time.Sleep(60 * time.Second)
		want("expired, at the server before")
		if got := next.take(); !slices.Equal(got, []string{`resources/unsubscribe {"uri":"a"}`, `resources/unsubscribe {"uri":"b"}`}) {
			t.Errorf("expired: the server got %q", got)
		}
		_ = subscribe("a")
		want("again", `resources/subscribe {"uri":"a"}`)
	})
}

// TestSubscriptionsOfEarlierBridge: a bridge that has just started cannot tell a renewal from a new subscription. The resource
// may have changed while no bridge was subscribed.
func TestSubscriptionsOfEarlierBridge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := updatesBed(sendsUpdates)
		f.updates.began = time.Now()
		for range 2 {
			if _, err := f.Handle(t.Context(), &rpc.Request{Method: "resources/subscribe", Params: json.RawMessage(`{"uri":"a"}`)}); err != nil {
				t.Fatal(err)
			}
		}
		if len(l.published) != 1 || !strings.Contains(l.published[0], `"notifications/resources/updated","params":{"uri":"a"}`) {
			t.Errorf("published: %q", l.published)
		}
		time.Sleep(subscriptionLease + time.Second) // ends the timer
	})
}

// TestSubscriptionsAtOnce: while the request of one caller is under way, another one's is sent, too. If the first one fails, the
// second one stays; if nothing was accepted, the subscription is ended at the server.
func TestSubscriptionsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waiting []*jsonrpc.Exchange
		l := &scriptedLink{answer: func(x *jsonrpc.Exchange) (jsonrpc.Reply, bool) {
			if x.Method == "resources/subscribe" {
				waiting = append(waiting, x)
			}
			return jsonrpc.Reply{}, false
		}}
		_, f := updatesBed(sendsUpdates)
		f.conn, f.updates.to = l, l
		timeout := jsonrpc.Reply{Err: rpc.Errorf(rpc.CodeTimeout, rpc.RanMaybe, "late")}
		subscribe := func() {
			f.HandleAsync(&rpc.Request{Method: "resources/subscribe", Params: json.RawMessage(`{"uri":"a"}`)}, &jsonrpc.Exchange{Sink: &frames{}})
		}
		deliver := func(n int, r jsonrpc.Reply) { waiting[n].Sink.Deliver(waiting[n], r) }
		subscribe()
		subscribe()
		if len(waiting) != 2 {
			t.Fatalf("%d requests were sent", len(waiting))
		}
		deliver(1, jsonrpc.NewReply(json.RawMessage("{}"), nil))
		deliver(0, timeout)
		if subscribe(); len(waiting) != 2 || len(f.updates.leases) != 1 {
			t.Errorf("the second caller's subscription: %d requests, %v", len(waiting), f.updates.leases)
		}
		f.updates.leases = nil
		l.take()
		subscribe()
		deliver(2, timeout)
		if got := l.take(); !slices.Contains(got, `resources/unsubscribe {"uri":"a"}`) || len(f.updates.leases) != 0 {
			t.Errorf("after a time-out: %v, %v", got, f.updates.leases)
		}
		time.Sleep(2 * subscriptionLease) // ends the timer
	})
}

func TestSubscriptionLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f := updatesBed(sendsUpdates)
		subscribe := func(params string) *rpc.Error {
			_, err := f.Handle(t.Context(), &rpc.Request{Method: "resources/subscribe", Params: json.RawMessage(params)})
			if err == nil {
				return nil
			}
			return rpc.AsError(err)
		}
		for i := range maxSubscriptions {
			if err := subscribe(fmt.Sprintf(`{"uri":"%d"}`, i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := subscribe(`{"uri":"more"}`); err == nil || err.Code != rpc.CodeOverloaded {
			t.Errorf("one too many: %v", err)
		}
		for _, bad := range []string{``, `{}`, `{"uri":7}`, `{"uri":""}`, `{"uri":"` + strings.Repeat("x", maxListingKey+1) + `"}`} {
			if err := subscribe(bad); err == nil || err.Code != rpc.CodeInvalidParams {
				t.Errorf("%.40s: %v", bad, err)
			}
		}
		_, f = updatesBed(`{"resources":{}}`)
		if err := subscribe(`{"uri":"a"}`); err == nil || err.Code != rpc.CodeMethodNotFound {
			t.Errorf("not declared: %v", err)
		}
		time.Sleep(2 * subscriptionLease)
	})
}

// TestSubscriptionsNotResumed: what cannot be subscribed again at a server that runs is subscribed with the next renewal. A
// server that has ended is followed by another, at which everything is subscribed again.
func TestSubscriptionsNotResumed(t *testing.T) {
	for name, tt := range map[string]struct {
		transport manifest.TransportType
		err       *rpc.Error
		again     bool
	}{
		"child, too slow":    {manifest.Stdio, rpc.Errorf(rpc.CodeTimeout, rpc.RanNo, "not read"), true},
		"child, ended":       {manifest.Stdio, rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "ended"), false},
		"child, own error":   {manifest.Stdio, &rpc.Error{Code: rpc.CodeExited, Message: "no"}, true},
		"HTTP, 429":          {manifest.HTTP, rpc.Errorf(rpc.CodeOverloaded, rpc.RanNo, "429"), true},
		"HTTP, one POST cut": {manifest.HTTP, rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "cut"), true},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, f := updatesBed(sendsUpdates)
			f.updates.workload.transport.Type = tt.transport
			subscribe := func() {
				if _, err := f.Handle(t.Context(), &rpc.Request{Method: "resources/subscribe", Params: json.RawMessage(`{"uri":"a"}`)}); err != nil {
					t.Error(err)
				}
			}
			subscribe()
			l.take()
			f.updates.resume(&scriptedLink{answer: func(*jsonrpc.Exchange) (jsonrpc.Reply, bool) { return jsonrpc.Reply{Err: tt.err}, true }})
			subscribe()
			if sent := len(l.take()) > 0; sent != tt.again {
				t.Errorf("%s: subscribed again: %v", name, sent)
			}
			time.Sleep(2 * subscriptionLease)
		})
	}
}
