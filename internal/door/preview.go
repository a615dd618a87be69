package door

import (
	"log/slog"
	"time"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// Preview is what clients are shown, for people who set a client up.
type Preview struct {
	Searching bool            `json:"searching"` // the client gets the search tools instead of these
	Tools     []PreviewTool   `json:"tools"`
	Hidden    []PreviewHidden `json:"hidden"`
	Bytes     int             `json:"bytes"` // of the list of all tools
}

// PreviewTool is a tool that is listed. Changes are what was repaired in its descriptor.
type PreviewTool struct {
	Name      string   `json:"name"`
	Extension string   `json:"extension"`
	Tool      string   `json:"tool"`
	Bytes     int      `json:"bytes"`
	Changes   []string `json:"changes,omitempty"`
}

// PreviewHidden is a tool that is not listed although it may be, and why.
type PreviewHidden struct {
	Extension string `json:"extension"`
	Tool      string `json:"tool"`
	Reason    string `json:"reason"`
}

// NewPreview returns what a view shows of the extensions.
func NewPreview(o ViewOptions, extensions []mesh.Extension, now time.Time) (Preview, error) {
	state, err := newViewState(nil, config.DefaultProfile, o)
	if err != nil {
		return Preview{}, err
	}
	cache := &lists{}
	cache.tools.update(extensions, slog.New(slog.DiscardHandler))
	v, _ := buildView(state.opt, &view{}, extensions, cache, now)
	p := Preview{Searching: v.searching, Tools: []PreviewTool{}, Hidden: []PreviewHidden{}, Bytes: len(v.legacy.text)}
	for _, t := range v.tools {
		p.Tools = append(p.Tools, PreviewTool{t.name, t.key.ID, t.key.Tool, len(t.legacy) + len(t.name), t.changes})
	}
	for _, h := range v.hidden {
		p.Hidden = append(p.Hidden, PreviewHidden{h.key.ID, h.key.Tool, h.reason})
	}
	for _, e := range extensions {
		if ok, _ := isListed(e.State, state.opt.HideAfter, now); ok || len(cache.tools[e.ID].items) == 0 {
			continue
		}
		for _, it := range cache.tools[e.ID].items {
			if state.opt.permits(it) {
				p.Hidden = append(p.Hidden, PreviewHidden{it.key.ID, it.key.Tool, "the extension is " + string(e.State.State)})
			}
		}
	}
	return p, nil
}
