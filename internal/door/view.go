package door

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// listedTool is an item with its name in a view.
type listedTool struct {
	name string
	*item
}

// view is what clients see of the catalog at one moment. It does not change.
type view struct {
	lists        [listKinds]listing
	skills       listing
	claimed      map[string]*entry // resources of extensions that are not shown, by URI
	readers      []reader          // sorted by id
	tools        []listedTool      // sorted by name
	byName       map[string]*listedTool
	legacy       page
	modern       page
	hidden       []hidden
	searching    bool      // ToolsAuto decides for search
	instructions [2]string // for clients that list the tools, and for those that search
	extensions   int

	search *lazyIndex
}

// lazyIndex is the index of the tools for search, which is built when it is needed.
type lazyIndex struct {
	once  sync.Once
	index *searchIndex
}

// page is a whole list as JSON, without the brackets.
type page struct {
	text []byte
	ends []int    // the offset after each entry
	keys []string // the entries' names or URIs, sorted
}

// viewState is a view that follows the catalog, and the clients that are notified when it changes.
type viewState struct {
	door    *Door
	profile string
	opt     ViewOptions
	now     atomic.Pointer[view]
	links   links

	mu        sync.Mutex
	listeners map[*listener]struct{}
}

func newViewState(d *Door, profile string, o ViewOptions) (*viewState, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	v := &viewState{door: d, profile: profile, opt: o, listeners: map[*listener]struct{}{},
		links: links{byID: map[string]*linksOf{}}}
	first := &view{searching: o.Tools == ToolsSearch}
	if o.Instructions != "" { // it does not depend on the mesh, and clients read it once
		text := instructions(o, 0, nil, false)
		first.instructions = [2]string{text, text}
	}
	v.now.Store(first)
	return v, nil
}

// render renders the view, notifies the clients if it has changed, and returns when an extension will have to be hidden.
func (v *viewState) render(extensions []mesh.Extension, all *lists, now time.Time) (next time.Time) {
	old := v.now.Load()
	fresh, next := buildView(v.opt, old, extensions, all, now)
	v.now.Store(fresh)
	v.notify(old, fresh)
	return next
}

// buildView decides what clients see. old is the view before, for the hysteresis of the search mode and for what is the same.
func buildView(o ViewOptions, old *view, extensions []mesh.Extension, all *lists, now time.Time) (_ *view, next time.Time) {
	v := &view{}
	next = now.Add(time.Hour)
	var items []*item
	var entries [listKinds][]*entry
	var shown []mesh.Extension
	for _, e := range extensions {
		r := all.tools[e.ID]
		listed, until := isListed(e.State, all.unavailableSince(e), o.HideAfter, now)
		if !listed {
			v.claimURIs(all.of(e.ID, resources), o)
		}
		if !listed || len(r.items)+len(r.hidden) == 0 && e.Spec.Server == nil {
			continue
		}
		if !until.IsZero() && until.Before(next) {
			next = until
		}
		before := len(items)
		for _, it := range r.items {
			if o.permits(it) {
				items = append(items, it)
			}
		}
		for _, h := range r.hidden {
			if o.permitsName(h.key, wire.ToolName(h.key.ID, h.key.Tool)) {
				v.hidden = append(v.hidden, h)
			}
		}
		if v.addEntries(&entries, e, all, o) || len(items) > before {
			shown = append(shown, e)
		}
	}
	v.setTools(items, o, old)
	entries[resources] = v.addSkills(entries[resources], all.skills, o)
	for kind := range listKinds {
		v.setEntries(kind, entries[kind], o)
	}
	v.extensions = len(shown)
	v.searching = o.searches(v, old.searching)
	v.instructions = [2]string{instructions(o, len(v.tools), shown, false), instructions(o, len(v.tools), shown, true)}
	return v, next
}

// isListed reports whether an extension's tools are listed, and until when if it is unavailable. Restarts do not change
// the list: a tool disappears when its extension has been unavailable since some time, whatever its states were.
func isListed(s *mesh.StateDoc, since time.Time, hideAfter time.Duration, now time.Time) (ok bool, until time.Time) {
	switch {
	case s.Available:
		return true, time.Time{}
	case s.State == heartbeat.Gated || s.State == "":
		return false, time.Time{}
	}
	until = since.Add(hideAfter)
	return now.Before(until), until
}

func (v *view) setTools(items []*item, o ViewOptions, old *view) {
	names := assignNames(items, o.Names, o.NameLimit)
	v.tools = make([]listedTool, 0, len(items))
	for _, it := range items {
		v.tools = append(v.tools, listedTool{names[it], it})
	}
	slices.SortFunc(v.tools, func(a, b listedTool) int { return strings.Compare(a.name, b.name) })
	if old.search != nil && slices.Equal(v.tools, old.tools) { // most changes are those of a state
		v.tools, v.byName, v.modern, v.legacy, v.search = old.tools, old.byName, old.modern, old.legacy, old.search
		return
	}
	v.search = &lazyIndex{}
	v.byName = make(map[string]*listedTool, len(v.tools))
	same := true
	for i := range v.tools {
		t := &v.tools[i]
		v.byName[t.name] = t
		same = same && len(t.legacy) == len(t.modern)
	}
	v.modern = renderPage(v.tools, mcp.EraModern)
	v.legacy = v.modern
	if !same {
		v.legacy = renderPage(v.tools, mcp.EraLegacy)
		v.legacy.keys = v.modern.keys
	}
}

func renderPage(tools []listedTool, era mcp.Era) page {
	size := 0
	for _, t := range tools {
		size += len(t.name) + len(t.modern) + 16
	}
	p := page{text: make([]byte, 0, size), ends: make([]int, 0, len(tools)), keys: make([]string, 0, len(tools))}
	for i, t := range tools {
		if i > 0 {
			p.text = append(p.text, ',')
		}
		p.text = append(p.text, `{"name":`...)
		p.text = append(p.text, mcp.Quote(t.name)...)
		if era == mcp.EraModern {
			p.text = append(p.text, t.modern...)
		} else {
			p.text = append(p.text, t.legacy...)
		}
		p.text = append(p.text, '}')
		p.ends, p.keys = append(p.ends, len(p.text)), append(p.keys, t.name)
	}
	return p
}

func (v *view) page(era mcp.Era) *page {
	if era == mcp.EraModern {
		return &v.modern
	}
	return &v.legacy
}

// sameList reports whether two views have the same list of tools.
func sameList(a, b *view) bool {
	return bytes.Equal(a.modern.text, b.modern.text) && bytes.Equal(a.legacy.text, b.legacy.text)
}
