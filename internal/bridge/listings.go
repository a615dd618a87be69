package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// listingKind is another list of an MCP server than the list of its tools.
type listingKind struct {
	method     string
	capability string // the server lists it if it has declared this
	member     string // of the result
	key        string // the member of each entry that identifies it
	most       int    // entries
}

var listingKinds = []listingKind{
	{"prompts/list", "prompts", "prompts", "name", 1000},
	{"resources/list", "resources", "resources", "uri", 2000},
	{"resources/templates/list", "resources", "resourceTemplates", "uriTemplate", 200},
}

// The bounds of one listing, in bytes.
const (
	maxListing      = 2 << 20
	maxListingEntry = 64 << 10
	maxListingKey   = 4 << 10
)

// listing is what a server has listed: the response to the method, and its description in the catalog.
type listing struct {
	answer json.RawMessage
	wire.Listing
}

// listings are the lists of one server, by method. Those that it does not have are absent.
type listings map[string]*listing

// lists are the listings as the catalog shows them.
func (l listings) lists() (out wire.Lists) {
	at := func(method string) *wire.Listing {
		if l[method] == nil {
			return nil
		}
		return &l[method].Listing
	}
	return wire.Lists{Prompts: at("prompts/list"), Resources: at("resources/list"), Templates: at("resources/templates/list")}
}

// readListings reads the lists that the server of w has declared. A list that cannot be read is a problem, and is to be read
// again; until then the one in before is used. It takes at most limit, and reports whether that was too short for all pages of a
// list. It returns an error if the connection or ctx has ended.
func readListings(ctx context.Context, c rpc.Caller, w *workload, hs *handshake, server *wire.Server, before listings, limit time.Duration) (cut bool, err error) {
	hs.listings = listings{}
	listCtx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, kind := range listingKinds {
		if server == nil || !server.Offers(kind.capability) {
			continue
		}
		l, problems, err := kind.read(listCtx, c)
		if part, ok := errors.AsType[*cutError](err); ok { // what was read counts, unless more of it was known
			if cut = true; before[kind.method] != nil && before[kind.method].Count > part.read.Count {
				err = fmt.Errorf("%s: the pages take too long", kind.method)
			} else {
				l, err = part.read, nil
			}
		}
		switch {
		case errors.Is(err, rpc.CodeMethodNotFound) && isOwnError(err): // many servers have no templates
			continue
		case err != nil && (ctx.Err() != nil || w.hasEnded(err)):
			return cut, err
		case err != nil:
			hs.incomplete = true
			problems = []wire.Diagnostic{{Level: "warn", Code: wire.CodeBadList, Message: fmt.Sprintf("%v; the list is requested again", err)}}
			l = before[kind.method]
		}
		if hs.problems = append(hs.problems, problems...); l != nil {
			hs.listings[kind.method] = l
		}
	}
	return cut, nil
}

// listTime limits the reading of prompts, resources and templates: usual, or four times what initialize took if that is longer
// (three requests and a reserve). most limits the longer time only.
func (hs *handshake) listTime(usual, most time.Duration) time.Duration {
	return max(usual, min(4*hs.took, most))
}

// read reads one list, page by page.
func (k listingKind) read(ctx context.Context, c rpc.Caller) (*listing, []wire.Diagnostic, error) {
	b := &listingBuilder{kind: k, seen: map[string]bool{}}
	b.text = append(b.text, `{"`+k.member+`":[`...)
	seen := cursors{}
	var params, first, next json.RawMessage
	for page := 1; ; page++ {
		result, err := c.Call(ctx, k.method, params)
		if errors.Is(err, rpc.CodeTimeout) && b.count > 0 { // it has many pages, or slow ones
			b.problem("reading %s stopped at page %d, because the pages take too long; %d entries are used", k.method, page, b.count)
			return nil, b.problems, &cutError{b.listing()}
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", k.method, err)
		}
		if page == 1 {
			first = result
		} else if string(next) == `""` && bytes.Equal(result, first) { // the server means the end by an empty cursor
			break
		}
		next, err = b.add(result)
		if err != nil {
			return nil, nil, fmt.Errorf("the result of %s: %w", k.method, err)
		}
		if b.full || len(next) == 0 || string(next) == "null" {
			break
		}
		if seen.ends(page, string(next)) {
			b.problem("reading %s stopped at page %d, because the pages do not end; %d entries are used", k.method, page, b.count)
			break
		}
		params = append(append(json.RawMessage(`{"cursor":`), next...), '}')
	}
	return b.listing(), b.problems, nil
}

// cutError is returned if the time was over before the last page of a list.
type cutError struct{ read *listing }

func (*cutError) Error() string { return "the pages take too long" }

func (b *listingBuilder) listing() *listing {
	answer := append(b.text, "]}"...)
	return &listing{bytes.Clone(answer), wire.Listing{Count: b.count, Digest: wire.ListDigest(answer)}}
}

// listingBuilder collects the entries of a list.
type listingBuilder struct {
	kind     listingKind
	text     []byte
	count    int
	full     bool
	seen     map[string]bool
	problems []wire.Diagnostic
}

func (b *listingBuilder) problem(format string, args ...any) {
	if len(b.problems) < maxProblems {
		b.problems = append(b.problems, wire.Diagnostic{Level: "warn", Code: wire.CodeBadList, Message: fmt.Sprintf(format, args...)})
	}
}

// add adds the entries of a page, in the server's own bytes, and returns the cursor of the next page.
func (b *listingBuilder) add(result json.RawMessage) (next json.RawMessage, err error) {
	var list []byte
	err = jsonrpc.Each(result, func(key, value []byte) bool { // a map of all members could be large
		switch string(key) {
		case b.kind.member:
			list = value
		case "nextCursor":
			next = value
		}
		return true
	})
	if err != nil || len(list) == 0 || string(list) == "null" {
		return next, err
	}
	n := 0
	err = jsonrpc.Elements(list, func(entry []byte) bool {
		key, why := b.check(entry)
		if n++; n > 10*b.kind.most {
			b.full = true
			b.problem("%s is cut after %d entries", b.kind.method, b.count)
			return false
		}
		if why != "" {
			b.problem("an entry of %s is left out: %s", b.kind.method, why)
			return true
		}
		if b.count == b.kind.most || len(b.text)+len(entry) > maxListing {
			b.full = true
			b.problem("%s is cut after %d entries: a list may have %d, and %d bytes", b.kind.method, b.count, b.kind.most, maxListing)
			return false
		}
		b.seen[key] = true
		if b.count++; b.count > 1 {
			b.text = append(b.text, ',')
		}
		b.text = append(b.text, entry...)
		return true
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", b.kind.member, err)
	case b.full:
		return nil, nil
	}
	return next, nil
}

// check returns what identifies an entry, or why it is left out.
func (b *listingBuilder) check(entry json.RawMessage) (key, why string) {
	if len(entry) == 0 || entry[0] != '{' {
		return "", "it is not an object"
	}
	at, ok := jsonrpc.Member(entry, b.kind.key)
	switch {
	case len(entry) > maxListingEntry:
		return "", fmt.Sprintf("its %d bytes are over the limit of %d", len(entry), maxListingEntry)
	case !ok || json.Unmarshal(at.In(entry), &key) != nil || key == "":
		return "", "its " + b.kind.key + " is not a text"
	case len(key) > maxListingKey:
		return "", fmt.Sprintf("its %s of %d bytes is over the limit of %d", b.kind.key, len(key), maxListingKey)
	case b.seen[key]:
		return "", fmt.Sprintf("it is the second with the %s %.128q", b.kind.key, key)
	}
	return key, ""
}

const (
	// relistTimeout limits one reading of the other lists, and one of the tools if a start may not take longer anyway.
	relistTimeout = 10 * time.Second

	// firstListTimeout limits the reading of the other lists in the handshake. Tools can be called only after it, so a
	// server that takes longer to list its resources is ready without them, and they are requested again.
	firstListTimeout = time.Second
)
