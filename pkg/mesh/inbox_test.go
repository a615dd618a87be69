package mesh_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/extmesh/extmesh/internal/serve"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestProgressNeverTakesTheAnswersPlace floods a caller that is slow to read: progress may be lost, the answer
// may not.
func TestProgressNeverTakesTheAnswersPlace(t *testing.T) {
	connect := startServer(t)
	sent := make(chan struct{}, 1)
	h := rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		for range 1000 {
			if err := r.Send("notifications/progress", json.RawMessage(`{"progress":1}`)); err != nil {
				return nil, err
			}
		}
		return json.RawMessage(`"done"`), nil
	})
	service := connect()
	serveWeather(t, service, weather, rpc.HandlerFunc(func(ctx context.Context, r *rpc.Request) (json.RawMessage, error) {
		defer func() { sent <- struct{}{} }()
		return h(ctx, r)
	}), serve.Options{})
	nc := connect()
	client := mesh.NewClient(nc, mesh.ClientOptions{})
	seen := 0
	got, err := client.CallStream(t.Context(), "weather/x", nil, func(json.RawMessage) {
		if seen++; seen > 1 {
			return
		}
		<-sent // all of it is on its way; behind two round trips it and the answer have arrived
		for range 2 {
			if service.Flush() != nil || nc.Flush() != nil {
				t.Error("a flush failed")
			}
		}
	})
	if err != nil || string(got) != `"done"` || seen == 0 || seen == 1000 {
		t.Errorf("= %s, %v, after %d of 1000 messages of progress", got, err, seen)
	}
}
