package serve

import (
	"bytes"
	"encoding/json"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// maxStateDoc is the longest state document that is read: many thousands of instances.
const maxStateDoc = 1 << 20

// stateWords are a Node's subscriptions to the catalog's word on its extensions: one for each, however many slots of it
// there are, or the server would send them as many copies of a document that is the longer the more they are.
type stateWords struct {
	mu sync.Mutex
	of map[string]*stateWord // by extension id; guarded by mu
}

type stateWord struct {
	sub   *nats.Subscription // nil where the connection took none
	slots int                // that are on the mesh
}

// hearState subscribes Run to the catalog's state of an extension, for one slot more. A live instance that finds itself shown
// as lost, or as shut down, announces itself immediately. Without the permission to subscribe, its next heartbeat comes in
// time.
func (n *Publisher) hearState(id string) {
	n.words.mu.Lock()
	defer n.words.mu.Unlock()
	w := n.words.of[id]
	if w == nil {
		w = &stateWord{}
		n.words.of[id] = w
	}
	if w.slots++; w.sub == nil {
		w.sub, _ = n.nc.ChanSubscribe(n.stateEvents()+id, n.in)
	}
}

// unhearState takes one hearState back.
func (n *Publisher) unhearState(id string) {
	n.words.mu.Lock()
	defer n.words.mu.Unlock()
	w := n.words.of[id]
	if w.slots--; w.slots > 0 {
		return
	}
	delete(n.words.of, id)
	if w.sub != nil {
		_ = w.sub.Unsubscribe() // or the connection is closed, and it with it
	}
}

// calledLost announces those slots of an extension again that the catalog shows as lost or shut down although they are on
// the mesh. If the registry is right, its probes find that out again.
func (n *Publisher) calledLost(id string, data []byte) {
	for _, s := range n.lostSlots(id, data) {
		s.announceNow()
	}
}

// lostSlots are those slots of an extension that its state document shows as lost or shut down.
func (n *Publisher) lostSlots(id string, data []byte) (lost []*Instance) {
	if len(data) > maxStateDoc || n.noneLost(data) {
		return nil
	}
	var doc wire.StateDoc
	if json.Unmarshal(data, &doc) != nil {
		return nil
	}
	for _, i := range doc.Instances {
		if i.State != heartbeat.Lost && i.State != heartbeat.Shutdown {
			continue
		}
		s := n.slot(i.Instance)
		if s == nil || s.id != id {
			continue
		}
		if own, _ := s.State(); own != i.State {
			lost = append(lost, s)
		}
	}
	return lost
}

func (n *Publisher) slot(instance string) *Instance {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.slots[instance]
}

// noneLost reports whether a state document certainly shows no slot of this node as lost or shut down. Nearly every change of
// a state concerns other instances, and of a thousand instances one is lost: neither is worth decoding all of them.
func (n *Publisher) noneLost(data []byte) bool {
	return n.noneIn(heartbeat.Lost, data) && n.noneIn(heartbeat.Shutdown, data)
}

// noneIn is noneLost for one state. It decodes only those instances that contain the state's word, starting where the
// registry writes the beginning of an instance. If the word is anywhere else, or one of the instances is a slot of this node,
// the whole document has to be decoded.
func (n *Publisher) noneIn(state heartbeat.State, data []byte) bool {
	word, begin := []byte(`"`+state+`"`), []byte(`{"instance":`)
	for done := 0; ; {
		at := bytes.Index(data[done:], word)
		if at < 0 {
			return true
		}
		at += done
		first := bytes.LastIndex(data[done:at], begin)
		if first < 0 {
			return false
		}
		var i struct {
			Instance string `json:"instance"`
		}
		element := json.NewDecoder(bytes.NewReader(data[done+first:]))
		if element.Decode(&i) != nil || n.slot(i.Instance) != nil {
			return false
		}
		done += first + int(element.InputOffset()) // where the word is behind it, it is found again, and no beginning
	}
}
