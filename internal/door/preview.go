package door

import (
	"context"
	"log/slog"
	"time"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// Preview is what clients are shown, for people who set a client up.
type Preview struct {
	Searching bool              `json:"searching"` // the client gets the search tools instead of these
	Tools     []PreviewTool     `json:"tools"`
	Prompts   []PreviewPrompt   `json:"prompts"`
	Resources []PreviewResource `json:"resources"` // with the skills of the mesh
	Templates []PreviewResource `json:"templates"` // of resources
	Hidden    []PreviewHidden   `json:"hidden"`
	Unread    []PreviewUnread   `json:"unread"`
	Bytes     int               `json:"bytes"` // of the list of all tools
}

// PreviewTool is a tool that is listed. Changes are what was repaired in its descriptor.
type PreviewTool struct {
	Name      string   `json:"name"`
	Extension string   `json:"extension"`
	Tool      string   `json:"tool"`
	Bytes     int      `json:"bytes"`
	Changes   []string `json:"changes,omitempty"`
}

// PreviewPrompt is a prompt that is listed.
type PreviewPrompt struct {
	Name      string `json:"name"`
	Extension string `json:"extension"`
	Prompt    string `json:"prompt"` // the extension's own name
}

// PreviewResource is a resource, a template of resources or a skill that is listed.
type PreviewResource struct {
	URI       string `json:"uri"`
	Extension string `json:"extension,omitempty"` // none has a skill
	Own       string `json:"own,omitempty"`       // the extension's own URI, if that is another one
	Skill     string `json:"skill,omitempty"`     // the directory of a skill
}

// PreviewHidden is a tool that is not listed although it may be, and why.
type PreviewHidden struct {
	Extension string `json:"extension"`
	Tool      string `json:"tool"`
	Reason    string `json:"reason"`
}

// PreviewUnread is a list of an extension that could not be read, and why.
type PreviewUnread struct {
	Extension string `json:"extension"`
	List      string `json:"list"` // prompts, resources or resourceTemplates
	Reason    string `json:"reason"`
}

// NewPreview returns what a view shows of the catalog. It requests the lists of prompts and resources, which the catalog
// does not have, with the client.
func NewPreview(ctx context.Context, o ViewOptions, catalog *mesh.Catalog, client *mesh.Client) (Preview, error) {
	state, err := newViewState(nil, config.DefaultProfile, o)
	if err != nil {
		return Preview{}, err
	}
	all, extensions := newLists(slog.New(slog.DiscardHandler)), catalog.All()
	all.tools.update(extensions, all.logger)
	all.setSkills(catalog.Skills())
	all.read(ctx, extensions, client)
	now := time.Now()
	v, _ := buildView(state.opt, &view{}, extensions, &all, now)
	p := Preview{Searching: v.searching, Tools: []PreviewTool{}, Prompts: []PreviewPrompt{}, Hidden: []PreviewHidden{},
		Unread: []PreviewUnread{}, Resources: v.previewURIs(resources), Templates: v.previewURIs(templates), Bytes: len(v.legacy.text)}
	for _, t := range v.tools {
		p.Tools = append(p.Tools, PreviewTool{t.name, t.key.ID, t.key.Tool, len(t.legacy) + len(t.name), t.changes})
	}
	for _, name := range v.lists[prompts].keys {
		e := v.lists[prompts].byKey[name]
		p.Prompts = append(p.Prompts, PreviewPrompt{name, e.key.ID, e.key.Tool})
	}
	for _, h := range v.hidden {
		p.Hidden = append(p.Hidden, PreviewHidden{h.key.ID, h.key.Tool, h.reason})
	}
	for _, e := range extensions {
		p.addUnread(e, &all)
		if ok, _ := isListed(e.State, all.unavailableSince(e), state.opt.HideAfter, now); ok || len(all.tools[e.ID].items) == 0 {
			continue
		}
		for _, it := range all.tools[e.ID].items {
			if state.opt.permits(it) {
				p.Hidden = append(p.Hidden, PreviewHidden{it.key.ID, it.key.Tool, "the extension is " + string(e.State.State)})
			}
		}
	}
	return p, nil
}

// read requests all lists of the extensions that are available, and returns when all have been answered or ctx is done.
func (l *lists) read(ctx context.Context, extensions []mesh.Extension, client *mesh.Client) {
	l.update(extensions, time.Now())
	for {
		l.start(func(next *list) {
			go func() { l.results <- next.request(ctx, client) }() // ends with the request, which read waits for
		})
		if !l.isBusy() {
			return
		}
		l.store(<-l.results, time.Now())
	}
}

// previewURIs are the entries of a list of resources or templates.
func (v *view) previewURIs(kind listKind) []PreviewResource {
	out := make([]PreviewResource, 0, len(v.lists[kind].keys))
	for _, uri := range v.lists[kind].keys {
		e := v.lists[kind].byKey[uri]
		r := PreviewResource{URI: uri, Extension: e.key.ID}
		if e.skill != nil {
			r.Skill = e.skill.of.Dir
		} else if e.key.Tool != uri {
			r.Own = e.key.Tool
		}
		out = append(out, r)
	}
	return out
}

// addUnread adds the lists of an extension that could not be read.
func (p *Preview) addUnread(e mesh.Extension, all *lists) {
	for kind := range listKinds {
		have := all.all[listKey{e.ID, kind}]
		switch {
		case listingOf(e.Spec, kind) == nil:
		case have == nil:
			p.Unread = append(p.Unread, PreviewUnread{e.ID, kinds[kind].member, "the extension is " + string(e.State.State)})
		case have.err != nil:
			p.Unread = append(p.Unread, PreviewUnread{e.ID, kinds[kind].member, have.err.Error()})
		}
	}
}
