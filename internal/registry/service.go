package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"golang.org/x/mod/semver"

	"github.com/extmesh/extmesh/internal/events"
	"github.com/extmesh/extmesh/internal/fleet"
	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// CatalogParams are the params of the method catalog; all are optional.
type CatalogParams struct {
	Cursor  string `json:"cursor,omitempty"`  // next_cursor of the previous page
	Limit   int    `json:"limit,omitempty"`   // entries; default and most 1000, fewer where they are large
	Outline bool   `json:"outline,omitempty"` // extensions only, each with the number of its tools in place of the tools
}

// SnapshotVersion identifies the catalog that an answer is from, and how recent it is.
type SnapshotVersion struct {
	CatalogID string `json:"catalog_id"`
	Revision  uint64 `json:"revision"`
	Stale     bool   `json:"stale,omitempty"` // no leader was active for 10 s, or the bucket cannot be followed
	AgeMS     int64  `json:"age_ms"`          // time since the leader was last active
}

// CatalogResult is one page of the merged catalog, extensions first, sorted by name.
type CatalogResult struct {
	SnapshotVersion
	Extensions []CatalogExtension         `json:"extensions,omitempty"`
	Hosts      map[string]json.RawMessage `json:"hosts,omitempty"`  // by bridge
	Skills     map[string]json.RawMessage `json:"skills,omitempty"` // by directory
	NextCursor string                     `json:"next_cursor,omitempty"`
}

// CatalogExtension is one extension, with the values of its keys in the bucket. The state is left out if both do not
// fit into one answer.
type CatalogExtension struct {
	ID    string          `json:"id"`
	Spec  json.RawMessage `json:"spec,omitempty"`
	State json.RawMessage `json:"state,omitempty"`
	Tools *int            `json:"tools,omitempty"` // of an outline
}

// ResolveParams are the params of the method resolve.
type ResolveParams struct {
	Name string `json:"name"` // a registered or bare tool name, id/tool, or an extension's id
}

// ResolveResult is what a caller needs to call one tool. Spec contains no tools. For an extension's id, Tool is null.
type ResolveResult struct {
	SnapshotVersion
	ID    string          `json:"id"`
	Tool  *wire.Tool      `json:"tool"`
	Spec  wire.Spec       `json:"spec"`
	State json.RawMessage `json:"state,omitempty"`
}

// resolveData is the data of resolve's errors, which have CodeInvalidParams: kind not_found with the nearest names,
// or ambiguous with the candidates.
type resolveData struct {
	Kind       string           `json:"kind"`
	Ran        rpc.Ran          `json:"ran"`
	Nearest    []string         `json:"nearest,omitempty"`
	Candidates []wire.NamedTool `json:"candidates,omitempty"`
}

const (
	pageEntries = 1000
	loopTimeout = 2 * time.Second // for the loop to take a request
	staleAfter  = 10 * time.Second
	maxWaiting  = 1024 // requests; what is more is dropped, so that one caller does not keep the others waiting for minutes
)

// serve answers on P.registry.rpc as the micro service "registry" until the returned service is stopped. Its endpoint
// reads from the loop and encodes outside of it, one request at a time, which bounds the memory.
func (r *Registry) serve(ctx context.Context) (micro.Service, error) {
	version := r.cfg.Version
	if !semver.IsValid("v" + version) {
		version = "0.0.0"
	}
	svc, err := micro.AddService(r.nc, micro.Config{Name: "registry", Version: version,
		Description: "the extension mesh's catalog", Metadata: map[string]string{"name": r.cfg.Name, "instance": r.instance}})
	if err != nil {
		return nil, fmt.Errorf("serving %s: %w", r.cfg.Prefix.RegistryRPC(), err)
	}
	err = svc.AddEndpoint("rpc", micro.HandlerFunc(func(req micro.Request) { r.handle(ctx, req) }),
		micro.WithEndpointSubject(r.cfg.Prefix.RegistryRPC()), micro.WithEndpointQueueGroup(wire.QueueGroup),
		micro.WithEndpointPendingLimits(maxWaiting, nats.DefaultSubPendingBytesLimit))
	if err != nil {
		_ = svc.Stop() // the first error is more useful
		return nil, fmt.Errorf("serving %s: %w", r.cfg.Prefix.RegistryRPC(), err)
	}
	return svc, nil
}

func (r *Registry) dispatch(ctx context.Context, method string, params json.RawMessage) (any, error) {
	into := func(v any) error {
		if len(params) == 0 {
			return nil
		}
		if err := json.Unmarshal(params, v); err != nil {
			return rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "params of %s: %v", method, err)
		}
		return nil
	}
	switch method {
	case "catalog":
		var p CatalogParams
		if err := into(&p); err != nil {
			return nil, err
		}
		return r.Catalog(ctx, p)
	case "resolve":
		var p ResolveParams
		if err := into(&p); err != nil {
			return nil, err
		}
		return r.Resolve(ctx, p)
	case "status":
		return r.Status(ctx)
	case "events":
		var q events.Query
		if err := into(&q); err != nil {
			return nil, err
		}
		return r.events(ctx, q)
	case "ping":
		return struct{}{}, nil
	}
	return nil, rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo,
		"the registry has no method %.100q; it has catalog, resolve, status, events and ping", method)
}

// events returns the last changes that this replica has received.
func (r *Registry) events(ctx context.Context, q events.Query) (a events.Answer, err error) {
	err = r.inLoop(ctx, func(l *loop) {
		a = l.events.Answer(q, int(r.nc.MaxPayload())-answerRoom)
		a.CatalogID, a.Registry = l.view.catalogID(), r.cfg.Name
	})
	return a, err
}

// Catalog returns one page of the merged catalog.
func (r *Registry) Catalog(ctx context.Context, p CatalogParams) (res CatalogResult, err error) {
	if p.Limit <= 0 || p.Limit > pageEntries {
		p.Limit = pageEntries
	}
	room := int(r.nc.MaxPayload()) - answerRoom
	err = r.inLoop(ctx, func(l *loop) {
		res = l.view.page(p, room)
		res.SnapshotVersion = l.view.version(l.started)
	})
	return res, err
}

// section is the part of the pages that a kind of key belongs to: extensions, then hosts, then skills.
func section(kind string) string {
	switch kind {
	case wire.KindSpec, wire.KindState:
		return "e"
	case wire.KindHost:
		return "h"
	case wire.KindSkill:
		return "s"
	}
	return ""
}

// entryRoom is the size of a page's entry without its name and values.
const entryRoom = len(`{"id":,"spec":,"state":,"tools":10000},`)

// page returns the entries after a cursor, which is the previous page's last "<section>.<name>", as many as fit into
// room. An entry larger than a page is returned without its state, or as a bare id, so that paging always makes
// progress. An outline has only extensions.
func (v *view) page(p CatalogParams, room int) (res CatalogResult) {
	order := v.sorted()
	from, found := slices.BinarySearch(order, p.Cursor)
	if found {
		from++
	}
	size := 0
	for n, entry := range order[from:] {
		first := n == 0
		part, name, _ := strings.Cut(entry, ".")
		if p.Outline && part != "e" {
			break // extensions are first
		}
		var values [2]json.RawMessage
		var tools *int
		switch part {
		case "e":
			values = [2]json.RawMessage{v.get(fleet.SpecKey(name)), v.get(fleet.StateKey(name))}
			if o := v.outlines[name]; p.Outline {
				values[0], tools = o.spec, &o.tools
			}
		case "h":
			values[0] = v.get(fleet.HostKey(name))
		case "s":
			values[0] = v.get(fleet.SkillKey(name))
		}
		size += entryRoom + len(plainjson.AppendString(nil, name)) + len(values[0]) + len(values[1])
		for n := len(values) - 1; first && n >= 0 && size > room; n-- {
			size -= len(values[n])
			values[n] = nil
		}
		if n == p.Limit || n > 0 && size > room {
			res.NextCursor = order[from+n-1]
			break
		}
		switch part {
		case "e":
			res.Extensions = append(res.Extensions, CatalogExtension{ID: name, Spec: values[0], State: values[1], Tools: tools})
		case "h":
			res.Hosts = with(res.Hosts, name, values[0])
		case "s":
			res.Skills = with(res.Skills, name, values[0])
		}
	}
	return res
}

func with(m map[string]json.RawMessage, name string, v json.RawMessage) map[string]json.RawMessage {
	if m == nil {
		m = map[string]json.RawMessage{}
	}
	m[name] = v
	return m
}

// sorted returns all entries of the catalog in the order of the pages. It is cached until a key is added or removed.
func (v *view) sorted() []string {
	if v.order == nil {
		seen := map[string]bool{}
		for key := range v.values {
			kind, name, _ := strings.Cut(key, ".")
			if s := section(kind); s != "" {
				seen[s+"."+name] = true
			}
		}
		v.order = make([]string, 0, len(seen))
		for entry := range seen {
			v.order = append(v.order, entry)
		}
		slices.Sort(v.order)
	}
	return v.order
}

// version identifies the view, and how recent it is, for a registry that was started at a time.
func (v *view) version(started time.Time) SnapshotVersion {
	age := time.Since(v.leaseSeen)
	if v.leaseSeen.IsZero() {
		age = time.Since(started)
	}
	return SnapshotVersion{CatalogID: v.catalogID(), Revision: v.revision, Stale: age > staleAfter || !v.synced,
		AgeMS: age.Milliseconds()}
}

// Resolve finds one tool by its name, or one extension by its id. Its errors are *rpc.Error of CodeInvalidParams,
// with data that distinguishes not_found (with the nearest names) from ambiguous (with the candidates).
func (r *Registry) Resolve(ctx context.Context, p ResolveParams) (ResolveResult, error) {
	var res ResolveResult
	var spec json.RawMessage
	var found []wire.NamedTool
	var keys []wire.ToolKey
	err := r.inLoop(ctx, func(l *loop) {
		found = l.fleet.Names().Lookup(p.Name)
		switch {
		case len(found) == 1:
			res.ID = found[0].ID
		case len(found) == 0 && l.view.get(fleet.SpecKey(p.Name)) != nil:
			res.ID = p.Name
		case len(found) == 0:
			keys = l.fleet.Names().Keys()
			return
		}
		res.SnapshotVersion, spec, res.State = l.view.version(l.started), l.view.get(fleet.SpecKey(res.ID)), l.view.get(fleet.StateKey(res.ID))
	})
	if err != nil {
		return res, err
	}
	if res.ID == "" {
		nearest, err := r.nearest(ctx, keys, p.Name)
		if err != nil {
			return res, err
		}
		return res, unresolved(p.Name, found, nearest)
	}
	if spec == nil { // the name is registered, but the spec is not written yet
		return res, unresolved(p.Name, nil, nil)
	}
	if err := json.Unmarshal(spec, &res.Spec); err != nil {
		return res, fmt.Errorf("spec of %s: %w", res.ID, err)
	}
	if len(found) == 1 {
		n := slices.IndexFunc(res.Spec.Tools, func(t wire.Tool) bool { return t.Own == found[0].Tool })
		if n < 0 {
			return res, unresolved(p.Name, nil, nil)
		}
		res.Tool = &res.Spec.Tools[n]
	}
	res.Spec.Tools = nil
	return res, nil
}

// nearest returns the names of similar tools. The search runs here because it would block the loop.
func (r *Registry) nearest(ctx context.Context, keys []wire.ToolKey, name string) (names []string, err error) {
	if keys = wire.NearestKeys(keys, name); len(keys) == 0 {
		return nil, nil
	}
	err = r.inLoop(ctx, func(l *loop) {
		for _, k := range keys {
			if name := l.fleet.Names().Name(k); name != "" { // it may have been removed meanwhile
				names = append(names, name)
			}
		}
	})
	return names, err
}

func unresolved(name string, candidates []wire.NamedTool, nearest []string) error {
	d := resolveData{Kind: "not_found", Ran: rpc.RanNo, Nearest: nearest, Candidates: candidates}
	message := fmt.Sprintf("there is no tool or extension %.200q", name)
	if len(candidates) > 0 {
		d.Kind = "ambiguous"
		message = fmt.Sprintf("%.200q is ambiguous; use one of its candidates", name)
	}
	data, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return &rpc.Error{Code: rpc.CodeInvalidParams, Message: message, Data: data}
}
