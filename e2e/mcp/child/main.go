// Command child is an MCP server for the tests, made with the Go SDK.
package main

import (
	"context"
	"encoding/json"
	"log"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

// await answers a call after an event.
func await(ctx context.Context, event <-chan struct{}, answer string) (*mcp.CallToolResult, error) {
	select {
	case <-event:
		return text(answer), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func main() {
	s := mcp.NewServer(&mcp.Implementation{Name: "child", Version: "1.0.0"}, nil)
	add := func(name string, h mcp.ToolHandler) {
		s.AddTool(&mcp.Tool{Name: name, Description: "For tests: " + name, InputSchema: json.RawMessage(`{"type":"object"}`)}, h)
	}
	add("echo", func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text(string(r.Params.Arguments)), nil
	})
	waiting, cancelled := make(chan struct{}, 1), make(chan struct{}, 1)
	add("wait", func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		waiting <- struct{}{}
		<-ctx.Done()
		cancelled <- struct{}{}
		return nil, ctx.Err()
	})
	add("is_waiting", func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return await(ctx, waiting, "yes")
	})
	add("was_cancelled", func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		select {
		case <-cancelled:
			return text("yes"), nil
		case <-time.After(20 * time.Second):
			return text("no"), nil
		}
	})
	received := make(chan struct{}, 1)
	add("has_all", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		received <- struct{}{}
		return text("good"), nil
	})
	add("count", func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		for i := range 3 {
			err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1), Total: 3})
			if err != nil {
				return nil, err
			}
		}
		return await(ctx, received, "counted") // the TypeScript SDK loses progress that arrives together with the result
	})
	add("add_tool", func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var p struct{ Name string }
		if err := json.Unmarshal(r.Params.Arguments, &p); err != nil {
			return nil, err
		}
		add(p.Name, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return text("new"), nil })
		return text("added"), nil
	})
	if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}
