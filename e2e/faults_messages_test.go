package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// messageFaults are children that write whole lines of JSON, only not the ones they should.
var messageFaults = []fault{
	{
		mode: "out-of-order", does: "answers 256 calls in the reverse order of their coming",
		caller: "its own answer", operator: "nothing", bridge: "tells answers apart by their ids",
		tools: []string{"act"},
		kid: func(k *kid) {
			var waiting []message
			k.serve(only("act", func(m message) {
				if waiting = append(waiting, m); len(waiting) < 256 {
					return
				}
				for _, m := range slices.Backward(waiting) {
					k.result(m, string(m.arg("n")))
				}
				waiting = nil
			}))
		},
		set:  func(s *config.Supervision) { s.MaxInflight = 512 }, // one caller may have half of them
		test: func(h *host) { h.ready(); h.ownAnswers(256, "act") },
	},
	{
		mode: "late-answer", does: "answers when the call's time is over",
		caller: "`timeout` (`ran: maybe`)", operator: "an unknown id in the control status",
		bridge: "tells it `notifications/cancelled`; drops and counts the answer",
		tools:  []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				go func() { // ends with its answer
					rest(2 * time.Second)
					k.result(m, `"late"`)
				}()
			}))
		},
		set: func(s *config.Supervision) { s.CallTimeout = 200 * time.Millisecond },
		test: func(h *host) {
			h.ready()
			pid := h.status().PID
			_, err := h.ask("tools/act", "{}")
			h.fails(err, rpc.CodeTimeout, rpc.RanMaybe)
			h.eventually("the late answer is counted", func() bool { return h.skipped().UnknownIDs == 1 })
			h.good()
			h.sameLife(pid)
		},
	},
	{
		mode: "answers-twice", does: "answers twice, and things that nobody asked, with ids of all types",
		caller: "the first answer", operator: "unknown ids in the control status", bridge: "drops and counts the others",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				k.say(`{"jsonrpc":"2.0","id":987654321,"result":"whose?"}` + "\n")
				k.result(m, `"first"`)
				k.result(m, `"second"`)
				for _, id := range []string{`"x"`, `{}`, `[1]`, `true`, `-1`, `1.5`, `1e99`} {
					k.say(`{"jsonrpc":"2.0","id":` + id + `,"result":"whose?"}` + "\n")
				}
				k.say(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}` + "\n")
			}))
		},
		test: func(h *host) {
			answers(`"first"`)(h)
			h.eventually("all of it is counted", func() bool { return h.skipped().UnknownIDs == 3*10 })
		},
	},
	{
		mode: "id-of-other-type", does: "returns the id 7 as \"7\" or as 7.0",
		caller: "the answer", operator: "nothing", bridge: "takes it for 7",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				forms := map[string]string{"1": `"%s"`, "2": "%s.0"}
				k.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":`+forms[string(m.arg("form"))]+`,"result":"fine"}`+"\n", m.ID))
			}))
		},
		test: func(h *host) {
			h.ready()
			for _, args := range []string{`{"form":1}`, `{"form":2}`} {
				if got, err := h.call("act", args); err != nil || got != `"fine"` {
					h.Errorf("%s: it answered %s, %v", args, got, err)
				}
			}
		},
	},
	{
		mode: "odd-errors", does: "answers with errors of odd shape: a string, no code, a code that is a string, a number",
		caller: "a JSON-RPC error with a code and a message, the odd one in its `data`", operator: "nothing", bridge: "mends it",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				k.say(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":` + string(m.arg("error")) + "}\n")
			}))
		},
		test: func(h *host) {
			h.ready()
			for _, tt := range []struct {
				error, text string
				code        rpc.Code
			}{
				{`"no such city"`, "no such city", rpc.CodeInternal},
				{`{"message":"no such city"}`, "no such city", rpc.CodeInternal},
				{`{"code":404}`, "odd shape", 404},
				{`{"code":"E404","message":"no such city"}`, "no such city", rpc.CodeInternal},
				{`17`, "odd shape", rpc.CodeInternal},
				{`{"code":-7,"message":"its own","data":{"a":1.0}}`, "its own", -7},
			} {
				_, err := h.call("act", `{"error":`+tt.error+`}`)
				if e := rpc.AsError(err); err == nil || e.Code != tt.code || !strings.Contains(e.Message, tt.text) ||
					!strings.Contains(string(e.Data)+tt.error, tt.error) {
					h.Errorf("%s came as %+v", tt.error, e)
				}
			}
		},
	},
	{
		mode: "result-and-error", does: "answers with a result and an error, or with neither",
		caller: "the result if it is not null, else the error; for neither: `internal` (`ran: maybe`)", operator: "nothing", bridge: "decides",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				var with string
				json.Unmarshal(m.arg("with"), &with)
				k.say(`{"jsonrpc":"2.0","id":` + string(m.ID) + with + "}\n")
			}))
		},
		test: func(h *host) {
			h.ready()
			h.oddly(",'result':1,'error':null", "1", 0)
			h.oddly(",'result':1,'error':{'code':-5,'message':'both'}", "1", 0)
			h.oddly(",'result':null,'error':{'code':-5,'message':'both'}", "", -5)
			h.oddly("", "", rpc.CodeInternal)
		},
	},
	{
		mode: "asks-back", does: "sends requests of its own: `ping`, `roots/list`, `sampling/createMessage`",
		caller: "nothing", operator: "nothing", bridge: "answers at once: `ping` with `{}`, all else with -32601",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				var got []string
				for _, method := range []string{"ping", "roots/list", "sampling/createMessage"} {
					k.say(`{"jsonrpc":"2.0","id":"` + method + `","method":"` + method + `","params":{}}` + "\n")
					a, _ := k.next()
					var e struct{ Code int }
					json.Unmarshal(a.Error, &e)
					got = append(got, fmt.Sprintf("%s %s %d", a.ID, a.Result, e.Code))
				}
				text, _ := json.Marshal(strings.Join(got, "; "))
				k.result(m, string(text))
			}))
		},
		test: answers(`"\"ping\" {} 0; \"roots/list\"  -32601; \"sampling/createMessage\"  -32601"`),
	},
	{
		mode: "notifies", does: "sends notifications of its own",
		caller: "nothing", operator: "each on `SP.<id>.event`, byte for byte", bridge: "publishes them",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				k.notify("inbox/changed", `{"unread":9007199254740993, "a":1.0}`)
				k.notify("notifications/message", `{"level":"info","data":"hello"}`)
				k.result(m, "true")
			}))
		},
		test: func(h *host) {
			events := make(chan *nats.Msg, 10)
			if _, err := h.w.nc.ChanSubscribe("ext."+h.id+".event", events); err != nil {
				h.Fatal(err)
			}
			h.ready()
			if _, err := h.call("act", "{}"); err != nil {
				h.Error(err)
			}
			for _, want := range []string{
				`{"jsonrpc":"2.0","method":"inbox/changed","params":{"unread":9007199254740993, "a":1.0}}`,
				`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"hello"}}`,
			} {
				select {
				case m := <-events:
					if string(m.Data) != want {
						h.Errorf("the event %s, want %s", m.Data, want)
					}
				case <-time.After(10 * time.Second):
					h.Fatalf("no event %s", want)
				}
			}
		},
	},
	{
		mode: "ignores-stdin", does: "stops reading its standard input, with 2,000 calls waiting",
		caller:   "`timeout` (`ran: no` for what was never written); after five `breaker_open`; when it was restarted, answers",
		operator: "the breaker `open`, then one restart: `it hangs: …`",
		bridge:   "queues within bounds, blocks nobody; pings it, and restarts it after `hang_timeout`",
		alone:    true,
		tools:    []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) { hang() }))
		},
		set: func(s *config.Supervision) {
			s.MaxInflight, s.CallTimeout, s.HangTimeout = 4096, time.Second, 500*time.Millisecond
		},
		test: func(h *host) {
			h.ready()
			before := heap()
			var mu sync.Mutex
			codes := map[rpc.Code]int{}
			body := rpc.AppendRequest(nil, []byte("1"), "tools/act", []byte(`{"text":"`+megabyte[:4000]+`"}`))
			inbox := h.w.nc.NewInbox()
			var all sync.WaitGroup
			all.Add(2000)
			if _, err := h.w.nc.Subscribe(inbox, func(m *nats.Msg) {
				mu.Lock()
				defer mu.Unlock()
				r, _ := rpc.ParseReply(m.Data)
				codes[r.ErrorCode()]++
				all.Done()
			}); err != nil {
				h.Fatal(err)
			}
			for range 2000 {
				if err := h.w.nc.PublishRequest("ext."+h.id+".rpc", inbox, body); err != nil {
					h.Fatal(err)
				}
			}
			h.eventually("none of them is answered yet", func() bool { h.w.nc.Flush(); return true })
			if grown := heap() - before; grown > 64<<20 {
				h.Errorf("2,000 calls of 4 KB made the heap grow by %d bytes", grown)
			}
			all.Wait()
			if codes[rpc.CodeTimeout] < 5 || codes[rpc.CodeTimeout]+codes[rpc.CodeBreakerOpen]+codes[rpc.CodeExited] != 2000 {
				h.Errorf("the calls ended so: %v", codes)
			}
			h.restarts(1)
			if e := h.status().LastExit; e == nil || !strings.Contains(e.Cause, "it hangs") {
				h.Errorf("its last exit: %+v", e)
			}
			h.recovers()
		},
	},
}

// oddly has the child answer with these members (' for ") besides jsonrpc and id.
func (h *host) oddly(members, want string, code rpc.Code) {
	h.Helper()
	members = strings.ReplaceAll(members, "'", `\"`)
	got, err := h.call("act", `{"with":"`+members+`"}`)
	if code == 0 && (err != nil || got != want) || code != 0 && rpc.AsError(err).Code != code {
		h.Errorf("%s came as %s, %v; want %s, %d", members, got, err, want, code)
	}
}
