package door

import (
	"context"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// listKind is a list of an extension that is not in the catalog.
type listKind int

// The kinds.
const (
	prompts listKind = iota
	resources
	templates // of resources
	listKinds
)

// kinds describes the kinds.
var kinds = [listKinds]struct {
	method  string
	member  string // of the result
	key     string // the member that identifies an entry
	pattern string // how a pattern of ViewOptions begins after <id>/
	most    int    // entries
}{
	{mcp.MethodListPrompts, "prompts", "name", "prompt:", 1000},
	{mcp.MethodListResources, "resources", "uri", "resource:", 2000},
	{mcp.MethodListTemplates, "resourceTemplates", "uriTemplate", "resource:", 200},
}

// kindOf returns the list that a method requests.
func kindOf(method string) (listKind, bool) {
	for kind := range listKinds {
		if kinds[kind].method == method {
			return kind, true
		}
	}
	return 0, false
}

// listingOf is the catalog's description of a list; nil if the extension does not have it.
func listingOf(s *mesh.Spec, kind listKind) *wire.Listing {
	if s.Server == nil {
		return nil
	}
	return [listKinds]*wire.Listing{s.Server.Lists.Prompts, s.Server.Lists.Resources, s.Server.Lists.Templates}[kind]
}

// The limits of one list, in bytes. A bridge has the same.
const (
	maxList     = 4 << 20
	maxEntry    = 64 << 10
	maxEntryKey = 4 << 10
)

// entry is a prompt, a resource or a template.
type entry struct {
	named           // the extension, and the prompt's name, the URI or the template
	text     []byte // as the extension has written it, except for what clients reject
	template *mcp.Template
	skill    *skill // of a resource that the Door itself has
}

// parseEntries reads the answer to a request for a list.
func parseEntries(kind listKind, id string, answer []byte) (out []*entry, err error) {
	k := kinds[kind]
	at, ok := jsonrpc.Member(answer, k.member)
	list := at.In(answer)
	if !ok || len(list) == 0 || list[0] != '[' || len(answer) > maxList || !utf8.Valid(answer) {
		return nil, fmt.Errorf("the result of %s has no list %s of at most %d bytes", k.method, k.member, maxList)
	}
	seen := map[string]bool{}
	err = jsonrpc.Elements(list, func(element []byte) bool {
		text, key, ok := mcp.FitEntry(k.key, element)
		if !ok || len(element) > maxEntry || len(key) > maxEntryKey || seen[key] || len(out) == k.most {
			return true
		}
		e := &entry{named: named{wire.ToolKey{ID: id, Tool: key}, key}, text: text}
		switch kind {
		case prompts:
			e.registered = wire.ToolName(id, key)
		case templates:
			if e.template, ok = mcp.ParseTemplate(key); !ok { // nobody can use it
				return true
			}
		}
		seen[key] = true
		out = append(out, e)
		return true
	})
	return out, err
}

// listKey identifies a list.
type listKey struct {
	id   string
	kind listKind
}

// list is a list as it was requested.
type list struct {
	listKey
	digest  string // that the catalog had
	entries []*entry
	err     error
	retry   time.Time // when to request it again, if the digest has not changed; zero: not at all
	pause   time.Duration
}

// The limits of requests for lists.
const (
	maxListRequests = 8
	listTimeout     = 10 * time.Second
	firstListRetry  = time.Second
	lastListRetry   = time.Minute
)

// lists are the lists of all extensions, from which views are made: their tools and the skills, which the catalog has, and
// the others, which are requested when the catalog shows another digest. All methods are for the goroutine of Run.
type lists struct {
	all     map[listKey]*list
	busy    map[listKey]bool
	queue   []*list // to be requested
	skills  []*skill
	tools   renderCache          // of the catalog
	since   map[string]time.Time // by id: when an extension became unavailable; zero while it is available
	results chan *list           // buffered, for maxListRequests
	logger  *slog.Logger
}

func newLists(logger *slog.Logger) lists {
	return lists{all: map[listKey]*list{}, busy: map[listKey]bool{}, results: make(chan *list, maxListRequests), logger: logger}
}

// noteUnavailable records when extensions became unavailable, by the clock of this machine. The catalog has only when the
// present state began, and an extension that fails again and again changes its state all the time.
func (l *lists) noteUnavailable(extensions []mesh.Extension, now time.Time) {
	before := l.since
	l.since = make(map[string]time.Time, len(extensions))
	for _, e := range extensions {
		since, known := before[e.ID]
		switch {
		case e.State.Available:
			since = time.Time{}
		case !known:
			since = earlier(e.State.Since, now)
		case since.IsZero():
			since = now
		}
		l.since[e.ID] = since
	}
}

// unavailableSince returns when an extension became unavailable.
func (l *lists) unavailableSince(e mesh.Extension) time.Time {
	if since := l.since[e.ID]; !since.IsZero() {
		return since
	}
	return e.State.Since
}

// of returns what is known of a list.
func (l *lists) of(id string, kind listKind) []*entry {
	if have := l.all[listKey{id, kind}]; have != nil {
		return have.entries
	}
	return nil
}

// update finds the lists that have changed, and forgets those that are gone. It returns when to call it again.
func (l *lists) update(extensions []mesh.Extension, now time.Time) (next time.Time) {
	next = now.Add(time.Hour)
	l.queue = nil
	wanted := map[listKey]bool{}
	for _, e := range extensions {
		for kind := range listKinds {
			listing := listingOf(e.Spec, kind)
			if listing == nil {
				continue
			}
			key := listKey{e.ID, kind}
			wanted[key] = true
			have := l.all[key]
			switch {
			case l.busy[key] || !e.State.Available:
			case have != nil && have.digest == listing.Digest && (have.retry.IsZero() || now.Before(have.retry)):
				if !have.retry.IsZero() && have.retry.Before(next) {
					next = have.retry
				}
			default:
				l.queue = append(l.queue, &list{listKey: key, digest: listing.Digest})
			}
		}
	}
	for key := range l.all {
		if !wanted[key] {
			delete(l.all, key)
		}
	}
	return next
}

// start passes the lists that may be requested now to request, which sends them to results.
func (l *lists) start(request func(*list)) {
	for len(l.queue) > 0 && len(l.busy) < maxListRequests {
		next := l.queue[0]
		l.queue, l.busy[next.listKey] = l.queue[1:], true
		request(next)
	}
}

// isBusy reports whether results are to come.
func (l *lists) isBusy() bool { return len(l.busy) > 0 }

// store keeps the result of a request. A list that could not be read is requested again, and one that is not the list that
// the catalog shows: another version of the extension may have answered.
func (l *lists) store(fresh *list, now time.Time) {
	delete(l.busy, fresh.listKey)
	if fresh.err != nil {
		l.logger.Debug("a list could not be read", "extension", fresh.id, "list", kinds[fresh.kind].method, "error", fresh.err)
	}
	if have := l.all[fresh.listKey]; have != nil {
		if fresh.pause = 2 * have.pause; fresh.err != nil {
			fresh.entries = have.entries
		}
	}
	if fresh.pause = min(max(fresh.pause, firstListRetry), lastListRetry); !fresh.retry.IsZero() {
		fresh.retry = now.Add(fresh.pause)
	} else {
		fresh.pause = 0
	}
	l.all[fresh.listKey] = fresh
}

// request reads a list.
func (l *list) request(ctx context.Context, client *mesh.Client) *list {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	answer, err := client.CallExt(ctx, l.id, kinds[l.kind].method, nil)
	if err == nil {
		l.entries, err = parseEntries(l.kind, l.id, answer)
	}
	if l.err = err; err != nil || wire.ListDigest(answer) != l.digest {
		l.retry = time.Now()
	}
	return l
}
