package door

import (
	"bytes"
	"encoding/json"
	"sync"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// The limits of the links that are remembered.
const (
	maxLinks      = 256  // of an extension
	maxLinkLength = 2048 // bytes
	maxLinkers    = 1000 // extensions
)

// links are the resources to which results have referred. Servers refer to resources that they do not list, and a
// client that follows such a link sends only the URI. The links are those of all clients of a view, because a modern
// client has no session.
type links struct {
	mu   sync.Mutex
	byID map[string]*linksOf
}

// linksOf are the last links of one extension.
type linksOf struct {
	uris map[string]bool
	next int // place in ring
	ring [maxLinks]string
}

// add remembers the links in a result of an extension.
func (l *links) add(e *mesh.Extension, result []byte) {
	uris := linksIn(result)
	if len(uris) == 0 || e.Spec == nil || e.Spec.Server == nil || !e.Spec.Server.Offers("resources") {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.byID[e.ID]
	if of == nil {
		if len(l.byID) >= maxLinkers {
			clear(l.byID)
		}
		of = &linksOf{uris: map[string]bool{}}
		l.byID[e.ID] = of
	}
	for _, uri := range uris {
		of.add(uri)
	}
}

func (o *linksOf) add(uri string) {
	if uri == "" || len(uri) > maxLinkLength || o.uris[uri] {
		return
	}
	delete(o.uris, o.ring[o.next])
	o.ring[o.next], o.uris[uri] = uri, true
	o.next = (o.next + 1) % maxLinks
}

// owner returns the extension whose results had a link to uri: of several, the one with the lowest id, as in the lists.
func (l *links) owner(v *view, o ViewOptions, uri string) (id string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range v.readers { // in the order of their ids
		if of := l.byID[r.id]; of != nil && of.uris[uri] && o.permitsEntry(resources, r.id, uri) {
			return r.id, true
		}
	}
	return "", false
}

// linksIn returns the URIs of the resource links and embedded resources in the result of a tool or a prompt.
func linksIn(result []byte) (uris []string) {
	if !bytes.Contains(result, []byte(`"resource`)) {
		return nil
	}
	add := func(raw []byte) bool { // one at a time, because the decoded form can be much larger than the text
		var c struct {
			Type     string
			URI      string
			Resource struct{ URI string }
		}
		if !bytes.Contains(raw, []byte(`"resource`)) || json.Unmarshal(raw, &c) != nil { // what is malformed has no links
			return true
		}
		switch c.Type {
		case "resource_link":
			uris = append(uris, c.URI)
		case "resource":
			uris = append(uris, c.Resource.URI)
		}
		return len(uris) < maxLinks
	}
	content, _ := jsonrpc.Member(result, "content")
	_ = jsonrpc.Elements(content.In(result), add)
	messages, _ := jsonrpc.Member(result, "messages")
	_ = jsonrpc.Elements(messages.In(result), func(message []byte) bool {
		of, _ := jsonrpc.Member(message, "content")
		return add(of.In(message))
	})
	return uris
}
