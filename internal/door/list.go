package door

import (
	"encoding/base64"
	"sort"
	"strconv"
	"time"

	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// A list of up to wholeList entries and wholeBytes is one page, because many clients read only the first page. A longer
// one is divided.
const (
	wholeList   = 2000
	wholeBytes  = 8 << 20
	pageEntries = 1000
	pageBytes   = 1 << 20
)

// freshFor is how long a modern client may use a list without another request.
const freshFor = 30 * time.Second

// staleAfter is the age of the catalog from which on clients are asked not to cache what was made from it.
const staleAfter = 10 * time.Second

// listTools answers tools/list.
func (c *client) listTools(q *request) ([]byte, *rpc.Error) {
	v := c.view.now.Load()
	c.becomesLegacy(q.era)
	list := v.page(q.era)
	if c.searches(v, q.era) {
		list = searchPage(c.view.opt.ReadOnly)
		return c.listResult(q, "tools", list.text, ""), nil
	}
	return c.listPage(q, "tools", list)
}

// becomesLegacy lets a client that is initialized in the legacy era, or lists something in it, get its notifications.
func (c *client) becomesLegacy(era mcp.Era) {
	if era == mcp.EraLegacy {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.legacy = true
	}
}

// listPage answers a request for the page of a list that its cursor asks for.
func (c *client) listPage(q *request, member string, list *page) ([]byte, *rpc.Error) {
	from, err := list.after(q.params.Cursor)
	if err != nil {
		return nil, err
	}
	to := list.pageEnd(from)
	begin := 0
	if from > 0 {
		begin = min(list.ends[from-1]+1, len(list.text))
	}
	if to == len(list.keys) {
		return c.listResult(q, member, list.text[begin:], ""), nil
	}
	return c.listResult(q, member, list.text[begin:list.ends[to-1]], cursorAfter(list.keys[to-1])), nil
}

// listResult is the result of a request for a list, whose entries are in the member.
func (c *client) listResult(q *request, member string, entries []byte, next string) []byte {
	out := make([]byte, 0, len(entries)+256)
	out = append(out, '{')
	if q.era == mcp.EraModern {
		out = append(out, c.cacheable()...)
	}
	out = append(append(append(out, '"'), member...), `":[`...)
	out = append(out, entries...)
	out = append(out, ']')
	if next != "" {
		out = append(append(append(out, `,"nextCursor":"`...), next...), '"')
	}
	return append(out, '}')
}

// cacheable are the first members of a modern result that clients may cache.
func (c *client) cacheable() []byte {
	ttl := freshFor
	if b := c.door.mesh.Load(); b == nil || !isClosed(c.door.whole) || b.catalog.Age() > staleAfter {
		ttl = 0
	}
	out := append([]byte(`"resultType":"complete","ttlMs":`), strconv.FormatInt(ttl.Milliseconds(), 10)...)
	scope := "public"
	if c.principal != "" || c.view.now.Load().searching { // then the list depends on the client
		scope = "private"
	}
	return append(append(append(out, `,"cacheScope":"`...), scope...), `",`...)
}

// after returns the index of the first entry after a cursor. A cursor holds a name and not a position, so that it stays
// valid when entries come and go.
func (p *page) after(cursor []byte) (int, *rpc.Error) {
	if len(cursor) == 0 || string(cursor) == "null" {
		return 0, nil
	}
	name, ok := parseCursor(cursor)
	if !ok {
		return 0, mcp.NewError(rpc.CodeInvalidParams, "params.cursor is not a cursor of this server: list without it to begin again", nil)
	}
	return sort.Search(len(p.keys), func(i int) bool { return p.keys[i] > name }), nil
}

// pageEnd returns the index after the last entry of the page that begins at from.
func (p *page) pageEnd(from int) int {
	if len(p.keys) <= wholeList && len(p.text) <= wholeBytes {
		return len(p.keys)
	}
	begin := 0
	if from > 0 {
		begin = p.ends[from-1]
	}
	to := min(from+pageEntries, len(p.keys))
	for to > from+1 && p.ends[to-1]-begin > pageBytes {
		to--
	}
	return to
}

const cursorVersion = 0x01

func cursorAfter(name string) string {
	return base64.RawURLEncoding.EncodeToString(append([]byte{cursorVersion}, name...))
}

// maxCursor limits a cursor. The longest has an escaped URI.
const maxCursor = 4 * maxEntryKey

func parseCursor(raw []byte) (name string, ok bool) {
	if len(raw) < 3 || len(raw) > maxCursor || raw[0] != '"' {
		return "", false
	}
	text, err := base64.RawURLEncoding.DecodeString(string(raw[1 : len(raw)-1]))
	if err != nil || len(text) < 2 || text[0] != cursorVersion {
		return "", false
	}
	return string(text[1:]), true
}
