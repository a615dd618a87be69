package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/wire"
)

// pager is an MCP server that answers each request for its tools with the same page.
type pager struct {
	mcpServer
	tools, cursor string
}

func (p *pager) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if method != "tools/list" {
		return p.mcpServer.Call(ctx, method, params)
	}
	p.listed++
	return json.RawMessage(fmt.Sprintf(`{"tools":[%s],"nextCursor":"%s%d"}`, p.tools, p.cursor, p.listed)), nil
}

// emptyCursor is a server that means the end of its list by an empty cursor, and ignores the cursor that it gets.
type emptyCursor struct{ mcpServer }

func (s *emptyCursor) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if method != "tools/list" {
		return s.mcpServer.Call(ctx, method, params)
	}
	return json.RawMessage(`{"tools":[` + mcpFirst + `],"nextCursor":""}`), nil
}

func TestEmptyCursor(t *testing.T) {
	hs, err := exchangeHandshake(t.Context(), &emptyCursor{}, &workload{announce: wire.Announce{Parent: "p"}}, "", nil)
	if err != nil || len(hs.tools) != 1 || string(hs.toolsList) != `{"tools":[`+mcpFirst+`]}` || len(hs.problems) > 0 {
		t.Errorf("%+v, %v", hs, err)
	}
}

// TestToolsListLimits reads lists of tools that are too large.
func TestToolsListLimits(t *testing.T) {
	large := &pager{tools: `{"name":"a","description":"` + strings.Repeat("x", 5<<20) + `"}`}
	if _, err := exchangeHandshake(t.Context(), large, &workload{announce: wire.Announce{Parent: "p"}}, "", nil); err == nil || !strings.Contains(err.Error(), "more than 16 MiB") || large.listed != 4 {
		t.Errorf("after %d pages: %v", large.listed, err)
	}
	long := &pager{tools: mcpFirst, cursor: strings.Repeat("x", maxCursor)}
	hs, err := exchangeHandshake(t.Context(), long, &workload{announce: wire.Announce{Parent: "p"}}, "", nil)
	if err != nil || long.listed != 1 || len(hs.tools) != 1 || !strings.Contains(fmt.Sprint(hs.problems), "endless_list") {
		t.Errorf("after %d pages: %+v %v", long.listed, hs, err)
	}
}
