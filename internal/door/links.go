package door

import (
	"bytes"
	"encoding/json"
	"sync"

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
	type content struct {
		Type     string
		URI      string
		Resource struct{ URI string }
	}
	var r struct {
		Content  []content
		Messages []struct{ Content content }
	}
	_ = json.Unmarshal(result, &r) // what is malformed has no links
	for _, m := range r.Messages {
		r.Content = append(r.Content, m.Content)
	}
	for _, c := range r.Content {
		switch c.Type {
		case "resource_link":
			uris = append(uris, c.URI)
		case "resource":
			uris = append(uris, c.Resource.URI)
		}
	}
	return uris
}
