package door

import (
	"context"
	"encoding/json"
	"strings"
	"sync"

	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// maxListens limits the subscriptions of one client. Some SDKs make one for each resource, and one for the lists.
const maxListens = maxFollowed + 1

// listen answers subscriptions/listen: it acknowledges the subscription, sends notifications with the request's id, and
// ends when the client cancels the request or the server stops.
func (c *client) listen(q *request) ([]byte, *rpc.Error) {
	var p struct {
		Notifications map[string]json.RawMessage `json:"notifications"`
	}
	if json.Unmarshal(q.raw, &p) != nil || p.Notifications == nil {
		return nil, mcp.NewError(rpc.CodeInvalidParams, "params.notifications must be an object", nil)
	}
	if !c.addListen(1) {
		return nil, mcp.NewError(rpc.CodeInvalidRequest, "too many subscriptions: cancel one of them first", nil)
	}
	defer c.addListen(-1)
	meta := `"_meta":{"` + mcp.MetaSubscriptionID + `":` + string(q.id) + `}`
	var agreed []string
	var wanted []*notice
	for i := range notices {
		if n := &notices[i]; string(p.Notifications[n.member]) == "true" {
			agreed, wanted = append(agreed, `"`+n.member+`":true`), append(wanted, n)
		}
	}
	// Nothing precedes the acknowledgement, and nothing that happens after it is missed: notifications wait until it is sent.
	// Those that wait hold no lock that follow or listen needs.
	var acknowledging sync.Mutex
	acknowledging.Lock()
	send := func(message []byte) {
		acknowledging.Lock()
		defer acknowledging.Unlock()
		q.notify(message)
	}
	f := &follower{client: c, meta: "{" + strings.TrimPrefix(meta, `"_meta":{`), send: send}
	defer f.end()
	var uris []string
	if json.Unmarshal(p.Notifications["resourceSubscriptions"], &uris) == nil && len(uris) > 0 {
		c.door.await(q.running.ctx, c.door.listed)
		of, err := plainjson.Marshal(asks{c}.follow(f, uris))
		if err != nil { // strings always encode
			panic(err)
		}
		agreed = append(agreed, `"resourceSubscriptions":`+string(of))
	}
	for _, n := range wanted {
		defer n.listen(c, mcp.EraModern, meta, send)()
	}
	q.notify([]byte(`{"jsonrpc":"2.0","method":"` + mcp.NotifyAcknowledged + `","params":{` + meta + `,"notifications":{` + strings.Join(agreed, ",") + `}}}`))
	acknowledging.Unlock()
	switch {
	case len(f.all()) > 0:
		f.renew(q.running.ctx, true)
	case len(wanted) > 0:
		<-q.running.ctx.Done()
	}
	if context.Cause(q.running.ctx) == errCancelled {
		return nil, errNoAnswer
	}
	return []byte(`{"resultType":"complete",` + meta + `}`), nil
}

func (c *client) addListen(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > 0 && c.listens >= maxListens {
		return false
	}
	c.listens += n
	return true
}
