package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestGoSDK uses the server as a program made with the Go SDK does, in both eras and over both transports.
func TestGoSDK(t *testing.T) {
	url := serveHTTP(t, "--tools", "all")
	for _, version := range []string{"2025-06-18", "2025-11-25", "2026-07-28"} {
		for name, transport := range map[string]func() mcp.Transport{
			"stdio": func() mcp.Transport { return &mcp.CommandTransport{Command: stdio("--tools", "all")} },
			"http":  func() mcp.Transport { return &mcp.StreamableClientTransport{Endpoint: url} },
		} {
			t.Run(version+" "+name, func(t *testing.T) { goSDK(t, transport(), version, version+name) })
		}
	}
}

func goSDK(t *testing.T, transport mcp.Transport, version, unique string) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	changed, last := make(chan struct{}, 100), make(chan struct{}, 100)
	var mu sync.Mutex
	var progress []float64
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		Capabilities:           &mcp.ClientCapabilities{},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			mu.Lock()
			defer mu.Unlock()
			if r.Params.ProgressToken == "token" {
				progress = append(progress, r.Params.Progress)
				if r.Params.Progress == 3 {
					last <- struct{}{}
				}
			}
		},
	})
	session, err := client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	names := list(ctx, t, session)
	for _, want := range []string{"ext_child_echo", "ext_everything_test_simple_text"} {
		if !slices.Contains(names, want) {
			t.Fatalf("%s is not among %q", want, names)
		}
	}
	parallel(ctx, t, session)

	told := make(chan error, 1)
	go func() { // ends with the last progress, or with ctx
		select {
		case <-last:
		case <-ctx.Done():
		}
		_, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "ext_child_has_all"})
		told <- err
	}()
	r := &mcp.CallToolParams{Name: "ext_child_count"}
	r.SetProgressToken("token")
	if got := call(ctx, t, session, r); got != "counted" {
		t.Errorf("count: %s", got)
	}
	if err := <-told; err != nil {
		t.Error(err)
	}
	mu.Lock()
	if !slices.Equal(progress, []float64{1, 2, 3}) {
		t.Errorf("progress: %v", progress)
	}
	mu.Unlock()

	waiting, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { // ends with waiting
		_, err := session.CallTool(waiting, &mcp.CallToolParams{Name: "ext_child_wait"})
		ended <- err
	}()
	if got := call(ctx, t, session, &mcp.CallToolParams{Name: "ext_child_is_waiting"}); got != "yes" {
		t.Errorf("is_waiting: %s", got)
	}
	stop()
	if err := <-ended; err == nil {
		t.Error("a cancelled call has a result")
	}
	if got := call(ctx, t, session, &mcp.CallToolParams{Name: "ext_child_was_cancelled"}); got != "yes" {
		t.Errorf("the cancellation has reached the server: %s", got)
	}

	tool := fmt.Sprintf("new_%x", unique)
	call(ctx, t, session, &mcp.CallToolParams{Name: "ext_child_add_tool", Arguments: map[string]string{"name": tool}})
	select {
	case <-changed:
	case <-ctx.Done():
		t.Fatal("no list_changed")
	}
	eventually(t, "the new tool in the list", func() bool { return slices.Contains(list(ctx, t, session), "ext_child_"+tool) })
	if got := call(ctx, t, session, &mcp.CallToolParams{Name: "ext_child_" + tool}); got != "new" {
		t.Errorf("the new tool: %s", got)
	}
	if _, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "no_such_tool"}); err == nil {
		t.Error("an unknown tool has a result")
	}
}

func list(ctx context.Context, t *testing.T, s *mcp.ClientSession) (names []string) {
	t.Helper()
	for tool, err := range s.Tools(ctx, nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	return names
}

// call returns the text of a result.
func call(ctx context.Context, t *testing.T, s *mcp.ClientSession, p *mcp.CallToolParams) string {
	t.Helper()
	r, err := s.CallTool(ctx, p)
	if err != nil {
		t.Fatalf("%s: %v", p.Name, err)
	}
	if len(r.Content) != 1 || r.IsError {
		t.Fatalf("%s: %+v", p.Name, r)
	}
	return r.Content[0].(*mcp.TextContent).Text
}

// parallel makes many calls at once and checks that each gets its own answer.
func parallel(ctx context.Context, t *testing.T, s *mcp.ClientSession) {
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			args := json.RawMessage(fmt.Sprintf(`{"n":%d,"big":9007199254740993}`, i))
			r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "ext_child_echo", Arguments: args})
			if err != nil || len(r.Content) != 1 || r.Content[0].(*mcp.TextContent).Text != string(args) {
				t.Errorf("call %d: %+v, %v", i, r, err)
			}
		})
	}
	wg.Wait()
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); !condition(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("still waiting: %s", what)
		}
	}
}
