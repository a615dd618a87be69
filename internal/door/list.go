package door

import (
	"encoding/base64"
	"sort"
	"strconv"
	"time"

	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// A list of up to wholeTools tools and wholeBytes is one page, because many clients read only the first page. A longer
// one is divided.
const (
	wholeTools = 2000
	wholeBytes = 8 << 20
	pageTools  = 1000
	pageBytes  = 1 << 20
)

// freshFor is how long a modern client may use a list without another request.
const freshFor = 30 * time.Second

// staleAfter is the age of the catalog from which on clients are asked not to cache what was made from it.
const staleAfter = 10 * time.Second

// listTools answers tools/list.
func (c *client) listTools(q *request) ([]byte, *rpc.Error) {
	v := c.view.now.Load()
	if q.era == mcp.EraLegacy { // from now on it is notified of changes, also without initialize
		c.mu.Lock()
		c.legacy = true
		c.mu.Unlock()
	}
	list := v.page(q.era)
	if c.searches(v, q.era) {
		list = searchPage(c.view.opt.ReadOnly)
		return c.listResult(q, list.text, ""), nil
	}
	from, err := v.after(q.params.Cursor)
	if err != nil {
		return nil, err
	}
	to := v.pageEnd(list, from)
	begin := 0
	if from > 0 {
		begin = min(list.ends[from-1]+1, len(list.text))
	}
	if to == len(v.tools) {
		return c.listResult(q, list.text[begin:], ""), nil
	}
	return c.listResult(q, list.text[begin:list.ends[to-1]], cursorAfter(v.tools[to-1].name)), nil
}

// listResult is the result of tools/list.
func (c *client) listResult(q *request, tools []byte, next string) []byte {
	out := make([]byte, 0, len(tools)+256)
	out = append(out, '{')
	if q.era == mcp.EraModern {
		out = append(out, c.cacheable()...)
	}
	out = append(out, `"tools":[`...)
	out = append(out, tools...)
	out = append(out, ']')
	if next != "" {
		out = append(append(append(out, `,"nextCursor":"`...), next...), '"')
	}
	return append(out, '}')
}

// cacheable are the first members of a modern result that clients may cache.
func (c *client) cacheable() []byte {
	ttl := freshFor
	if b := c.door.mesh.Load(); b == nil || !c.door.isReady() || b.catalog.Age() > staleAfter {
		ttl = 0
	}
	out := append([]byte(`"resultType":"complete","ttlMs":`), strconv.FormatInt(ttl.Milliseconds(), 10)...)
	return append(append(append(out, `,"cacheScope":"`...), c.cacheScope...), `",`...)
}

// after returns the index of the first tool after a cursor. A cursor holds a name and not a position, so that it stays
// valid when tools come and go.
func (v *view) after(cursor []byte) (int, *rpc.Error) {
	if len(cursor) == 0 || string(cursor) == "null" {
		return 0, nil
	}
	name, ok := parseCursor(cursor)
	if !ok {
		return 0, mcp.NewError(rpc.CodeInvalidParams, "params.cursor is not a cursor of this server: list without it to begin again", nil)
	}
	return sort.Search(len(v.tools), func(i int) bool { return v.tools[i].name > name }), nil
}

// pageEnd returns the index after the last tool of the page that begins at from.
func (v *view) pageEnd(list *page, from int) int {
	if len(v.tools) <= wholeTools && len(list.text) <= wholeBytes {
		return len(v.tools)
	}
	begin := 0
	if from > 0 {
		begin = list.ends[from-1]
	}
	to := min(from+pageTools, len(v.tools))
	for to > from+1 && list.ends[to-1]-begin > pageBytes {
		to--
	}
	return to
}

const cursorVersion = 0x01

func cursorAfter(name string) string {
	return base64.RawURLEncoding.EncodeToString(append([]byte{cursorVersion}, name...))
}

func parseCursor(raw []byte) (name string, ok bool) {
	if len(raw) < 3 || len(raw) > 256 || raw[0] != '"' {
		return "", false
	}
	text, err := base64.RawURLEncoding.DecodeString(string(raw[1 : len(raw)-1]))
	if err != nil || len(text) < 2 || text[0] != cursorVersion {
		return "", false
	}
	return string(text[1:]), true
}
