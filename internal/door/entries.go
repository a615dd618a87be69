package door

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// listing is a list of the prompts, resources or templates of a view.
type listing struct {
	page
	byKey map[string]*entry // by what identifies it in this list
}

// permitsEntry reports whether the view may show and read a prompt or a resource: a pattern has the extension's id, or
// <id>/prompt:<name> and <id>/resource:<uri>, where * also stands for slashes.
func (o ViewOptions) permitsEntry(kind listKind, id, key string) bool {
	matches := func(pattern string) bool {
		of, glob, narrow := strings.Cut(pattern, "/")
		if ok, _ := path.Match(of, id); !ok || !narrow { // check has tried the pattern
			return ok
		}
		glob, ok := strings.CutPrefix(glob, kinds[kind].pattern)
		if ok {
			ok, _ = path.Match(withoutSlashes(glob), withoutSlashes(key))
		}
		return ok
	}
	return (len(o.Only) == 0 || slices.ContainsFunc(o.Only, matches)) && !slices.ContainsFunc(o.Exclude, matches)
}

// permitsSome reports whether the view may show any prompts or resources of an extension.
func (o ViewOptions) permitsSome(kind listKind, id string) bool {
	has := func(patterns []string, narrow bool) bool {
		return slices.ContainsFunc(patterns, func(pattern string) bool {
			of, glob, isNarrow := strings.Cut(pattern, "/")
			ok, _ := path.Match(of, id)
			return ok && (!isNarrow || narrow && strings.HasPrefix(glob, kinds[kind].pattern))
		})
	}
	return (len(o.Only) == 0 || has(o.Only, true)) && !has(o.Exclude, false)
}

// permitsUnlisted reports whether the view may pass on the URI of a resource that is in no list. If a pattern selects resources
// of the extension, it may not: file:///docs/a, file://localhost/docs/a and file:///docs/%61 are the same file to many servers,
// and a pattern is compared with only one of these texts.
func (o ViewOptions) permitsUnlisted(id, uri string) bool {
	return !o.selectsResources(id) && o.permitsEntry(resources, id, uri)
}

// selectsResources reports whether a pattern is for resources of an extension.
func (o ViewOptions) selectsResources(id string) bool {
	return slices.ContainsFunc(slices.Concat(o.Only, o.Exclude), func(pattern string) bool {
		of, glob, _ := strings.Cut(pattern, "/")
		ok, _ := path.Match(of, id)
		return ok && strings.HasPrefix(glob, kinds[resources].pattern)
	})
}

// withoutSlashes replaces slashes, which * does not match.
func withoutSlashes(s string) string { return strings.ReplaceAll(s, "/", "\x1f") }

// addEntries adds what the view shows of an extension's lists to entries, and reports whether that is anything.
func (v *view) addEntries(entries *[listKinds][]*entry, x mesh.Extension, all *lists, o ViewOptions) (shows bool) {
	if x.Spec.Server == nil {
		return false
	}
	for kind := range listKinds {
		if kind == templates && o.selectsResources(x.ID) {
			continue // no resource of a template could be read
		}
		for _, e := range all.of(x.ID, kind) {
			if o.permitsEntry(kind, x.ID, e.key.Tool) {
				entries[kind] = append(entries[kind], e)
				shows = true
			}
		}
	}
	if x.Spec.Server.Offers("resources") && o.permitsSome(resources, x.ID) {
		v.readers = append(v.readers, reader{x.ID, all.of(x.ID, templates)})
	}
	return shows
}

// claimURIs keeps the URIs of an extension that is not shown: for a client that has them, they never mean resources of another.
func (v *view) claimURIs(entries []*entry, o ViewOptions) {
	for _, e := range entries {
		if owner := v.claimed[e.key.Tool]; o.permitsEntry(resources, e.key.ID, e.key.Tool) && (owner == nil || e.key.ID < owner.key.ID) {
			if v.claimed == nil {
				v.claimed = map[string]*entry{}
			}
			v.claimed[e.key.Tool] = e
		}
	}
}

// setEntries sets a list of the view.
func (v *view) setEntries(kind listKind, entries []*entry, o ViewOptions) {
	var keys map[*entry]string
	if kind == prompts {
		keys = assignNames(entries, o.Names, o.NameLimit)
	} else {
		keys = v.assignURIs(kind, entries)
	}
	list := listing{byKey: make(map[string]*entry, len(keys))}
	for e, key := range keys {
		list.byKey[key] = e
	}
	list.fill(func(key string, e *entry) []byte { return e.as(kind, key) })
	v.lists[kind] = list
}

// fill renders the page of what is in byKey.
func (l *listing) fill(render func(key string, e *entry) []byte) {
	l.keys = slices.Sorted(maps.Keys(l.byKey))
	for i, key := range l.keys {
		if i > 0 {
			l.text = append(l.text, ',')
		}
		l.text = append(l.text, render(key, l.byKey[key])...)
		l.ends = append(l.ends, len(l.text))
	}
}

// uriScheme is the scheme of a URI that names the extension of a resource: mesh://<id>/<the URI, percent-encoded>.
const uriScheme = "mesh://"

// namedURI is a URI that names the extension.
func namedURI(id, own string) string { return uriScheme + id + "/" + url.PathEscape(own) }

// assignURIs gives each resource a URI that no other has. Of two with the same URI, the one of the extension with the lower
// id keeps it, also while that extension is not shown if its list has been read, unless it names another extension. One that has no scheme is no URI: many
// clients would reject the whole list for it. A second template is left out.
func (v *view) assignURIs(kind listKind, entries []*entry) map[*entry]string {
	owners := make(map[string]*entry, len(entries))
	if kind == resources {
		maps.Copy(owners, v.claimed)
	}
	for _, e := range entries {
		if owner := owners[e.key.Tool]; owner == nil || e.key.ID < owner.key.ID {
			owners[e.key.Tool] = e
		}
	}
	uris := make(map[*entry]string, len(entries))
	for _, e := range entries {
		named, _, isNamed := v.extensionIn(e.key.Tool)
		u, err := url.Parse(e.key.Tool)
		switch {
		case owners[e.key.Tool] == e && (kind != resources || err == nil && u.IsAbs() && (!isNamed || named == e.key.ID)):
			uris[e] = e.key.Tool
		case kind == resources:
			uris[e] = namedURI(e.key.ID, e.key.Tool)
		}
	}
	return uris
}

// as is an entry with the name or URI that it has in a list.
func (e *entry) as(kind listKind, key string) []byte {
	if key == e.key.Tool {
		return e.text
	}
	text, _ := jsonrpc.SetMember(e.text, kinds[kind].key, mcp.Quote(key)) // it is an object
	if kind != resources {
		return text
	}
	for _, member := range []string{"name", "title"} { // the client shows one of them
		var name string
		at, ok := jsonrpc.Member(text, member)
		if ok && json.Unmarshal(at.In(text), &name) == nil {
			text = jsonrpc.Splice(text, at, mcp.Quote(name+" ("+e.key.ID+")"))
		}
	}
	return text
}

// reader is an extension of the view that has resources.
type reader struct {
	id        string
	templates []*entry
}

// extensionIn is the extension of the view that a URI names, and the percent-encoded URI that the extension knows.
func (v *view) extensionIn(uri string) (id, escaped string, ok bool) {
	named, ok := strings.CutPrefix(uri, uriScheme)
	id, escaped, _ = strings.Cut(named, "/")
	return id, escaped, ok && slices.ContainsFunc(v.readers, func(r reader) bool { return r.id == id })
}

// owner finds the extension that has a resource, and the URI that the extension knows. Which extension that is depends on
// the view only.
func (v *view) owner(o ViewOptions, uri string) (id, own string, ok bool) {
	if e := v.lists[resources].byKey[uri]; e != nil {
		return e.key.ID, e.key.Tool, e.skill == nil
	}
	if id, escaped, ok := v.extensionIn(uri); ok {
		own, err := url.PathUnescape(escaped)
		listed := cmp.Or(v.lists[resources].byKey[namedURI(id, own)], v.lists[resources].byKey[own])
		named := listed != nil && listed.key.ID == id
		return id, own, err == nil && own != "" && (named && o.permitsEntry(resources, id, own) || o.permitsUnlisted(id, own))
	}
	if e := v.claimed[uri]; e != nil { // a call explains why the extension is unavailable
		return e.key.ID, e.key.Tool, true
	}
	if strings.HasPrefix(uri, uriScheme) {
		return "", "", false
	}
	id = ""
	longest := -1
	for _, r := range v.readers { // in the order of their ids
		for _, e := range r.templates {
			if literal, fits := e.template.Matches(uri); fits && literal > longest && o.permitsUnlisted(r.id, uri) {
				id, longest = r.id, literal
			}
		}
	}
	if id == "" && len(v.readers) == 1 && o.permitsUnlisted(v.readers[0].id, uri) {
		id = v.readers[0].id // it may have resources that it does not list
	}
	return id, uri, id != ""
}
