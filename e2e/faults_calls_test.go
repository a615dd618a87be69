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
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// waitsForCancel is a kid whose tool act waits until it is cancelled, says so and answers an error, and whose tool
// cancelled tells how often that was.
func waitsForCancel(k *kid) {
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

// callFaults are callers and calls that are out of the ordinary.
var callFaults = []fault{
	{
		mode: "progress", does: "reports progress to three callers at once, two of whom chose the same token",
		caller: "its own progress under its own token, number or string as it was; then its answer", operator: "nothing",
		bridge: "gives the child tokens of its own",
		mcp:    true,
		tools:  []string{"act"},
		kid: func(k *kid) {
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
						k.notify("notifications/progress", fmt.Sprintf(`{"progressToken":%s,"progress":%d,"message":%s}`, p.Meta.ProgressToken, step, m.arg("who")))
					}
				}
				for _, m := range all {
					k.result(m, string(m.arg("who")))
				}
			}))
		},
		test: func(h *host) {
			h.ready()
			var wg sync.WaitGroup
			for who, token := range map[string]string{"a": `1`, "b": `1`, "c": `"1"`} {
				wg.Go(func() {
					var got []string
					for _, m := range h.stream("tools/call", fmt.Sprintf(`{"name":"act","arguments":{"who":%q},"_meta":{"progressToken":%s}}`, who, token)) {
						if kind := m.Header.Get("Ext-Frame"); kind != "accepted" && kind != "keepalive" { // those come with time
							got = append(got, kind+" "+string(m.Data))
						}
					}
					progress := `progress {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + token + `,"progress":%d,"message":"` + who + `"}}`
					want := fmt.Sprintf(progress+"\n"+progress+"\n"+` {"jsonrpc":"2.0","id":"e2e","result":"%s"}`, 1, 2, who)
					if strings.Join(got, "\n") != want {
						h.Errorf("caller %s got\n%s\nwant\n%s", who, strings.Join(got, "\n"), want)
					}
				})
			}
			wg.Wait()
		},
	},
	{
		mode: "caller-cancels", does: "has a call that its caller cancels",
		caller: "`cancelled` (`ran: maybe`)", operator: "nothing",
		bridge: "tells the child `notifications/cancelled` with the id that it knows",
		tools:  []string{"act", "cancelled"},
		kid:    waitsForCancel,
		test: func(h *host) {
			h.ready()
			ctx, cancel := context.WithCancel(h.Context())
			ended := make(chan error, 1)
			go func() { // ends with ctx
				_, err := h.client.Call(ctx, h.id+"/act", nil)
				ended <- err
			}()
			h.eventually("it has the call", func() bool { return h.events("got") == 1 })
			cancel()
			h.fails(<-ended, rpc.CodeCancelled, rpc.RanMaybe)
			h.eventually("the child knows", func() bool { return h.events("cancelled") == 1 })
			h.good()
		},
	},
	{
		mode: "caller-runs-out-of-time", does: "has a call whose time is over",
		caller: "`timeout` (`ran: maybe`)", operator: "nothing", bridge: "tells the child `notifications/cancelled` with the id that it knows",
		tools: []string{"act", "cancelled"},
		kid:   waitsForCancel,
		test: func(h *host) {
			h.ready()
			_, err := h.ask("tools/act", "{}", "Ext-Timeout", "1000") // enough to be sent
			h.fails(err, rpc.CodeTimeout, rpc.RanMaybe)
			h.eventually("the child knows", func() bool { return h.events("cancelled") == 1 })
			h.good()
		},
	},
	{
		mode: "caller-dies", does: "has a call whose caller, who takes a stream, is gone",
		caller: "—", operator: "nothing", bridge: "meets no listener with its next keepalive, 3 s at most; cancels the call",
		tools: []string{"act", "cancelled"},
		kid:   waitsForCancel,
		test: func(h *host) {
			h.ready()
			caller := h.w.connect(h.T)
			msg := nats.NewMsg("ext." + h.id + ".rpc")
			msg.Reply = caller.NewInbox()
			msg.Data = rpc.AppendRequest(nil, []byte("1"), "tools/act", []byte("{}"))
			msg.Header.Set("Ext-Stream", "1")
			if _, err := caller.SubscribeSync(msg.Reply); err != nil {
				h.Fatal(err)
			}
			if err := caller.PublishMsg(msg); err != nil {
				h.Fatal(err)
			}
			h.eventually("it has the call", func() bool { return h.events("got") == 1 })
			caller.Close()
			h.within(5*time.Second, "the cancellation", func() {
				h.eventually("the child knows", func() bool { return h.events("cancelled") == 1 })
			})
			h.good()
		},
	},
	{
		mode: "long-tool", does: "takes longer than `call_timeout`, ten minutes if need be",
		caller: "the answer, if it allows the time (`Ext-Timeout`, `extctl call --timeout`); else `timeout`", operator: "nothing",
		bridge: "waits as long as the caller says, up to 1 h; `keepalive` to those who take a stream",
		tools:  []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) { rest(3 * time.Second); k.result(m, `"done"`) }))
		},
		set: func(s *config.Supervision) { s.CallTimeout, s.HangTimeout = time.Second, 0 },
		test: func(h *host) {
			h.ready()
			if got, err := h.ask("tools/act", "{}", "Ext-Timeout", "10000"); err != nil || string(got) != `"done"` {
				h.Errorf("it answered %s, %v", got, err)
			}
			var frames []string
			for _, m := range h.stream("tools/act", "{}", "Ext-Timeout", "10000") {
				frames = append(frames, m.Header.Get("Ext-Frame")+" "+string(m.Data))
			}
			// A keepalive is due with the answer, and comes before it or not.
			frames = slices.DeleteFunc(frames, func(f string) bool { return f == "keepalive " })
			if want := []string{"accepted ", ` {"jsonrpc":"2.0","id":"e2e","result":"done"}`}; !slices.Equal(frames, want) {
				h.Errorf("these frames came: %q, want %q and keepalives", frames, want)
			}
			_, err := h.ask("tools/act", "{}")
			h.fails(err, rpc.CodeTimeout, rpc.RanMaybe)
		},
	},
	{
		mode: "its-own-error", does: "answers an error of its own, or a result that says `isError`",
		caller: "just that, code and data untouched", operator: "nothing; errors are counted in beats", bridge: "passes it on; the breaker takes it for an answer",
		mcp:   true,
		tools: []string{"act", "fails"},
		kid: func(k *kid) {
			k.serve(map[string]func(message){
				"act":   func(m message) { k.result(m, `{"content":[],"isError":true}`) },
				"fails": func(m message) { k.fail(m, -32001, "its own time-out") },
			})
		},
		test: func(h *host) {
			h.ready()
			for range 8 { // over the breaker's threshold
				if got, err := h.call("act", "{}"); err != nil || got != `{"content":[],"isError":true}` {
					h.Errorf("it answered %s, %v", got, err)
				}
				_, err := h.ask("tools/call", `{"name":"fails"}`)
				if e := rpc.AsError(err); e.Code != rpc.CodeTimeout || e.Message != "its own time-out" || e.Data != nil {
					h.Errorf("it failed with %+v", e)
				}
			}
			h.good()
		},
	},
}

// stream sends one request as a caller who takes a stream, and returns the messages up to the answer.
func (h *host) stream(method, params string, header ...string) (frames []*nats.Msg) {
	h.Helper()
	msg := nats.NewMsg("ext." + h.id + ".rpc")
	msg.Reply = h.w.nc.NewInbox()
	msg.Data = rpc.AppendRequest(nil, []byte(`"e2e"`), method, []byte(params))
	msg.Header.Set(mesh.HeaderStream, "1")
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
		if kind := m.Header.Get(mesh.HeaderFrame); kind == "" || kind == "end" {
			return frames
		}
	}
}
