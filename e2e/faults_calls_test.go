package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// waitsForCancel is a child with two tools: act waits until it is cancelled, and then sends a notification and an error;
// cancelled returns the number of cancellations.
func waitsForCancel(k *testChild) {
	waiting := map[string]message{}
	cancelled := 0
	k.serve(map[string]func(message){
		"act": func(m message) { waiting[string(m.ID)] = m; k.notify("got", "{}") },
		"notifications/cancelled": func(m message) {
			var p struct{ RequestID json.RawMessage }
			json.Unmarshal(m.Params, &p)
			if w, ok := waiting[string(p.RequestID)]; ok {
				cancelled++
				delete(waiting, string(p.RequestID))
				k.notify("cancelled", "{}")
				k.fail(w, -32800, "cancelled")
			}
		},
		"cancelled": func(m message) { k.result(m, fmt.Sprint(cancelled)) },
	})
}

// callFaults are unusual callers and calls.
var callFaults = []fault{
	{
		mode: "progress", does: "reports progress to three callers at once, two of which chose the same token",
		caller: "its own progress with its own token, number or string as it was sent; then its answer", operator: "nothing",
		bridge: "replaces the token by a unique one on the way to the child, and restores it on the way back",
		mcp:    true,
		tools:  []string{"act"},
		child: func(k *testChild) {
			var all []message
			k.serve(only("act", func(m message) {
				if all = append(all, m); len(all) < 3 {
					return
				}
				for step := 1; step <= 2; step++ {
					for _, m := range all {
						var p struct {
							Meta struct {
								ProgressToken json.RawMessage `json:"progressToken"`
							} `json:"_meta"`
						}
						json.Unmarshal(m.Params, &p)
						k.notify("notifications/progress", fmt.Sprintf(`{"progressToken":%s,"progress":%d,"message":%s}`, p.Meta.ProgressToken, step, m.arg("caller")))
					}
				}
				for _, m := range all {
					k.result(m, string(m.arg("caller")))
				}
			}))
		},
		test: func(h *host) {
			h.waitReady()
			var wg sync.WaitGroup
			for name, token := range map[string]string{"a": `1`, "b": `1`, "c": `"1"`} {
				wg.Go(func() {
					var got []string
					for _, m := range h.stream("tools/call", fmt.Sprintf(`{"name":"act","arguments":{"caller":%q},"_meta":{"progressToken":%s}}`, name, token)) {
						if kind := m.Header.Get("Ext-Frame"); kind != "accepted" && kind != "keepalive" { // their number depends on timing
							got = append(got, kind+" "+string(m.Data))
						}
					}
					progress := `progress {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + token + `,"progress":%d,"message":"` + name + `"}}`
					want := fmt.Sprintf(progress+"\n"+progress+"\n"+` {"jsonrpc":"2.0","id":"e2e","result":"%s"}`, 1, 2, name)
					if strings.Join(got, "\n") != want {
						h.Errorf("caller %s got\n%s\nwant\n%s", name, strings.Join(got, "\n"), want)
					}
				})
			}
			wg.Wait()
		},
	},
	{
		mode: "caller-cancels", does: "has a call that its caller cancels",
		caller: "`cancelled` (`ran: maybe`)", operator: "nothing",
		bridge: "sends the child `notifications/cancelled` with the id under which it has the request",
		tools:  []string{"act", "cancelled"},
		child:  waitsForCancel,
		test: func(h *host) {
			h.waitReady()
			ctx, cancel := context.WithCancel(h.Context())
			ended := make(chan error, 1)
			go func() { // ends with ctx
				_, err := h.client.Call(ctx, h.id+"/act", nil)
				ended <- err
			}()
			h.eventually("the child has the call", func() bool { return h.events("got") == 1 })
			cancel()
			h.wantError(<-ended, rpc.CodeCancelled, rpc.RanMaybe)
			h.eventually("the child has received the cancellation", func() bool { return h.events("cancelled") == 1 })
			h.callSucceeds()
		},
	},
	{
		mode: "caller-times-out", does: "has a call that reaches its timeout",
		caller: "`timeout` (`ran: maybe`)", operator: "nothing", bridge: "sends the child `notifications/cancelled` with the id under which it has the request",
		tools: []string{"act", "cancelled"},
		child: waitsForCancel,
		test: func(h *host) {
			h.waitReady()
			_, err := h.request("tools/act", "{}", "Ext-Timeout", "1000") // enough for the request to reach the child
			h.wantError(err, rpc.CodeTimeout, rpc.RanMaybe)
			h.eventually("the child has received the cancellation", func() bool { return h.events("cancelled") == 1 })
			h.callSucceeds()
		},
	},
	{
		mode: "caller-disconnects", does: "has a call whose caller requested a stream and has disconnected",
		caller: "—", operator: "nothing", bridge: "gets no responders for its next keepalive, after at most 3 s, and cancels the call",
		tools: []string{"act", "cancelled"},
		child: waitsForCancel,
		test: func(h *host) {
			h.waitReady()
			caller := h.w.connect(h.T)
			msg := nats.NewMsg("ext." + h.id + ".rpc")
			msg.Reply = caller.NewInbox()
			msg.Data = jsonrpc.AppendRequest(nil, []byte("1"), "tools/act", []byte("{}"))
			msg.Header.Set("Ext-Stream", "1")
			if _, err := caller.SubscribeSync(msg.Reply); err != nil {
				h.Fatal(err)
			}
			if err := caller.PublishMsg(msg); err != nil {
				h.Fatal(err)
			}
			h.eventually("the child has the call", func() bool { return h.events("got") == 1 })
			caller.Close()
			h.within(5*time.Second, "the cancellation", func() {
				h.eventually("the child has received the cancellation", func() bool { return h.events("cancelled") == 1 })
			})
			h.callSucceeds()
		},
	},
	{
		mode: "long-tool", does: "takes longer than `call_timeout`, for instance ten minutes",
		caller: "the answer, if the caller sets a longer timeout (`Ext-Timeout`, `extctl call --timeout`); otherwise `timeout`", operator: "nothing",
		bridge: "waits as long as the caller's timeout, up to 1 h; sends `keepalive` to a caller that requested a stream",
		tools:  []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) { pause(3 * time.Second); k.result(m, `"done"`) }))
		},
		set: func(s *config.Supervision) { s.CallTimeout, s.HangTimeout = time.Second, 0 },
		test: func(h *host) {
			h.waitReady()
			if got, err := h.request("tools/act", "{}", "Ext-Timeout", "10000"); err != nil || string(got) != `"done"` {
				h.Errorf("the answer is %s, %v", got, err)
			}
			var frames []string
			for _, m := range h.stream("tools/act", "{}", "Ext-Timeout", "10000") {
				frames = append(frames, m.Header.Get("Ext-Frame")+" "+string(m.Data))
			}
			// A keepalive is due at the time of the answer and can arrive before it.
			frames = slices.DeleteFunc(frames, func(f string) bool { return f == "keepalive " })
			if want := []string{"accepted ", ` {"jsonrpc":"2.0","id":"e2e","result":"done"}`}; !slices.Equal(frames, want) {
				h.Errorf("received the frames %q, want %q and keepalives", frames, want)
			}
			_, err := h.request("tools/act", "{}")
			h.wantError(err, rpc.CodeTimeout, rpc.RanMaybe)
		},
	},
	{
		mode: "own-error", does: "answers with its own error, or with a result that contains `isError`",
		caller: "that error or result, unchanged", operator: "nothing; errors are counted in heartbeats", bridge: "passes it on; it does not count as a failure for the breaker",
		mcp:   true,
		tools: []string{"act", "fails"},
		child: func(k *testChild) {
			k.serve(map[string]func(message){
				"act":   func(m message) { k.result(m, `{"content":[],"isError":true}`) },
				"fails": func(m message) { k.fail(m, -32001, "its own time-out") },
			})
		},
		test: func(h *host) {
			h.waitReady()
			for range 8 { // over the breaker's threshold
				if got, err := h.call("act", "{}"); err != nil || got != `{"content":[],"isError":true}` {
					h.Errorf("the answer is %s, %v", got, err)
				}
				_, err := h.request("tools/call", `{"name":"fails"}`)
				if e := rpc.AsError(err); e.Code != rpc.CodeTimeout || e.Message != "its own time-out" || e.Data != nil {
					h.Errorf("it failed with %+v", e)
				}
			}
			h.callSucceeds()
		},
	},
}

// stream sends one request with the stream header, and returns the messages up to and including the answer.
func (h *host) stream(method, params string, header ...string) (frames []*nats.Msg) {
	h.Helper()
	msg := nats.NewMsg("ext." + h.id + ".rpc")
	msg.Reply = h.w.nc.NewInbox()
	msg.Data = jsonrpc.AppendRequest(nil, []byte(`"e2e"`), method, []byte(params))
	msg.Header.Set(wire.HeaderStream, "1")
	for i := 0; i < len(header); i += 2 {
		msg.Header.Set(header[i], header[i+1])
	}
	sub, err := h.w.nc.SubscribeSync(msg.Reply)
	if err != nil {
		h.Fatal(err)
	}
	defer sub.Unsubscribe()
	if err := h.w.nc.PublishMsg(msg); err != nil {
		h.Fatal(err)
	}
	for {
		m, err := sub.NextMsg(time.Minute)
		if err != nil {
			h.Errorf("%s: after %d frames: %v", method, len(frames), err)
			return frames
		}
		frames = append(frames, m)
		if kind := m.Header.Get(wire.HeaderFrame); kind == "" || kind == "end" {
			return frames
		}
	}
}
