package mesh

import (
	"bytes"
	"encoding/json"
	"sync"

	"github.com/nats-io/nats.go"

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

// hearState has Run hear what the catalog calls an extension, for one slot more. Who is called lost, and lives, says so at
// once instead of at the next beat; without the permission to hear it, the next beat it is.
func (n *Node) hearState(id string) {
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
func (n *Node) unhearState(id string) {
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

// calledLost announces those slots of an extension again that the catalog calls lost although they live. The
// registry may have its reasons; if so, its probes will find them again.
func (n *Node) calledLost(id string, data []byte) {
	for _, s := range n.lostSlots(id, data) {
		s.announceNow()
	}
}

// lostSlots are those slots of an extension that its state document calls lost.
func (n *Node) lostSlots(id string, data []byte) (lost []*Slot) {
	if len(data) > maxStateDoc || n.noneLost(data) {
		return nil
	}
	var doc StateDoc
	if json.Unmarshal(data, &doc) != nil {
		return nil
	}
	for _, i := range doc.Instances {
		if i.State != heartbeat.Lost {
			continue
		}
		if s := n.slot(i.Instance); s != nil && s.id == id {
			lost = append(lost, s)
		}
	}
	return lost
}

func (n *Node) slot(instance string) *Slot {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.slots[instance]
}

// noneLost reports whether a state document surely calls no slot of this node lost. Nearly every change of a state is
// another one's, and of a thousand instances one is lost: neither is worth decoding all of them. So it looks at those
// instances only in which the word stands, where they begin as the registry writes them. A word that stands anywhere else
// leaves the question to the decoder, as does a slot of this node.
func (n *Node) noneLost(data []byte) bool {
	word, begin := []byte(`"`+heartbeat.Lost+`"`), []byte(`{"instance":`)
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
