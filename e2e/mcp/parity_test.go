package mcp

import (
	"context"
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestParity compares what a client gets of a server's prompts, resources and completions through extctl mcp with what the
// server itself answers.
func TestParity(t *testing.T) {
	url := serveHTTP(t, "--only", "everything", "--names", "own")
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			updates := make(chan string, 100)
			own := connect(ctx, t, &mcp.CommandTransport{Command: exec.Command(everything)}, version, nil)
			through := connect(ctx, t, &mcp.StreamableClientTransport{Endpoint: url}, version, updates)
			for name, ask := range questions {
				want, wantErr := ask(ctx, own)
				got, err := ask(ctx, through)
				if (err == nil) != (wantErr == nil) {
					t.Errorf("%s: %v, and the server itself: %v", name, err, wantErr)
				}
				if a, b := text(t, got), text(t, want); a != b {
					t.Errorf("%s\nhave %s\nwant %s", name, a, b)
				}
			}
			if err := through.Subscribe(ctx, &mcp.SubscribeParams{URI: "test://watched-resource"}); err != nil {
				t.Fatal(err)
			}
			select { // the server sends one every few seconds
			case uri := <-updates:
				if uri != "test://watched-resource" {
					t.Errorf("an update of %s", uri)
				}
			case <-ctx.Done():
				t.Error("no update")
			}
			if err := through.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: "test://watched-resource"}); err != nil {
				t.Error(err)
			}
		})
	}
}

func connect(ctx context.Context, t *testing.T, transport mcp.Transport, version string, updates chan<- string) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		Capabilities:           &mcp.ClientCapabilities{},
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { updates <- r.Params.URI },
	})
	session, err := client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// questions are requests whose answers are to be the same.
var questions = map[string]func(context.Context, *mcp.ClientSession) (any, error){
	"prompts": func(ctx context.Context, s *mcp.ClientSession) (any, error) {
		r, err := s.ListPrompts(ctx, nil)
		if err != nil {
			return nil, err
		}
		return r.Prompts, nil
	},
	"resources": func(ctx context.Context, s *mcp.ClientSession) (any, error) {
		r, err := s.ListResources(ctx, nil)
		if err != nil {
			return nil, err
		}
		return r.Resources, nil
	},
	"templates": func(ctx context.Context, s *mcp.ClientSession) (any, error) {
		r, err := s.ListResourceTemplates(ctx, nil)
		if err != nil {
			return nil, err
		}
		return r.ResourceTemplates, nil
	},
	"a prompt": func(ctx context.Context, s *mcp.ClientSession) (any, error) {
		r, err := s.GetPrompt(ctx, &mcp.GetPromptParams{Name: "test_prompt_with_arguments", Arguments: map[string]string{"arg1": "a", "arg2": "b"}})
		if err != nil {
			return nil, err
		}
		return r.Messages, nil
	},
	"an image":      read("test://static-binary"),
	"a text":        read("test://static-text"),
	"of a template": read("test://template/9/data"),
	"no resource":   read("test://none"),
	"a completion": func(ctx context.Context, s *mcp.ClientSession) (any, error) {
		r, err := s.Complete(ctx, &mcp.CompleteParams{
			Ref:      &mcp.CompleteReference{Type: "ref/prompt", Name: "test_prompt_with_arguments"},
			Argument: mcp.CompleteParamsArgument{Name: "arg1", Value: "par"},
		})
		if err != nil {
			return nil, err
		}
		return r.Completion, nil
	},
}

func read(uri string) func(context.Context, *mcp.ClientSession) (any, error) {
	return func(ctx context.Context, s *mcp.ClientSession) (any, error) {
		r, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			return nil, err
		}
		return r.Contents, nil
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	out, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
