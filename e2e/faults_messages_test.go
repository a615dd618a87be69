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
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// messageFaults are children that write valid lines of JSON with unexpected content.
var messageFaults = []fault{
	{
		mode: "out-of-order", does: "answers 256 calls in reverse order",
		caller: "its own answer", operator: "nothing", bridge: "matches answers to calls by id",
		tools: []string{"act"},
		child: func(k *testChild) {
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
		test: func(h *host) { h.waitReady(); h.ownAnswers(256, "act") },
	},
	{
		mode: "late-answer", does: "answers after the call's timeout",
		caller: "`timeout` (`ran: maybe`)", operator: "an unknown id counted in the control status",
		bridge: "sends `notifications/cancelled`; drops and counts the answer",
		tools:  []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				go func() { // ends with its answer
					pause(2 * time.Second)
					k.result(m, `"late"`)
				}()
			}))
		},
		set: func(s *config.Supervision) { s.CallTimeout = 200 * time.Millisecond },
		test: func(h *host) {
			h.waitReady()
			pid := h.status().PID
			_, err := h.request("tools/act", "{}")
			h.wantError(err, rpc.CodeTimeout, rpc.RanMaybe)
			h.eventually("the late answer is counted", func() bool { return h.skipped().UnknownIDs == 1 })
			h.callSucceeds()
			h.sameProcess(pid)
		},
	},
	{
		mode: "answers-twice", does: "answers twice, and sends answers to requests that do not exist, with ids of all types",
		caller: "the first answer", operator: "unknown ids counted in the control status", bridge: "drops and counts the other answers",
		tools: []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				k.write(`{"jsonrpc":"2.0","id":987654321,"result":"unknown"}` + "\n")
				k.result(m, `"first"`)
				k.result(m, `"second"`)
				for _, id := range []string{`"x"`, `{}`, `[1]`, `true`, `-1`, `1.5`, `1e99`} {
					k.write(`{"jsonrpc":"2.0","id":` + id + `,"result":"unknown"}` + "\n")
				}
				k.write(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}` + "\n")
			}))
		},
		test: func(h *host) {
			answers(`"first"`)(h)
			h.eventually("all of it is counted", func() bool { return h.skipped().UnknownIDs == 3*10 })
		},
	},
	{
		mode: "id-of-other-type", does: "returns the id 7 as \"7\" or as 7.0",
		caller: "the answer", operator: "nothing", bridge: "accepts both as 7",
		tools: []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				forms := map[string]string{"1": `"%s"`, "2": "%s.0"}
				k.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":`+forms[string(m.arg("form"))]+`,"result":"fine"}`+"\n", m.ID))
			}))
		},
		test: func(h *host) {
			h.waitReady()
			for _, args := range []string{`{"form":1}`, `{"form":2}`} {
				if got, err := h.call("act", args); err != nil || got != `"fine"` {
					h.Errorf("%s: the answer is %s, %v", args, got, err)
				}
			}
		},
	},
	{
		mode: "odd-errors", does: "answers with malformed errors: a string, no code, a code that is a string, a number",
		caller: "a JSON-RPC error with a code and a message, and the malformed one in its `data`", operator: "nothing", bridge: "creates a valid error",
		tools: []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				k.write(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":` + string(m.arg("error")) + "}\n")
			}))
		},
		test: func(h *host) {
			h.waitReady()
			for _, tt := range []struct {
				error, text string
				code        rpc.Code
			}{
				{`"no such city"`, "no such city", rpc.CodeInternal},
				{`{"message":"no such city"}`, "no such city", rpc.CodeInternal},
				{`{"code":404}`, "malformed error", 404},
				{`{"code":"E404","message":"no such city"}`, "no such city", rpc.CodeInternal},
				{`17`, "malformed error", rpc.CodeInternal},
				{`{"code":-7,"message":"its own","data":{"a":1.0}}`, "its own", -7},
			} {
				_, err := h.call("act", `{"error":`+tt.error+`}`)
				if e := rpc.AsError(err); err == nil || e.Code != tt.code || !strings.Contains(e.Message, tt.text) ||
					!strings.Contains(string(e.Data)+tt.error, tt.error) {
					h.Errorf("%s became %+v", tt.error, e)
				}
			}
		},
	},
	{
		mode: "result-and-error", does: "answers with a result and an error, or with neither",
		caller: "the result if it is not null, otherwise the error; with neither: `internal` (`ran: maybe`)", operator: "nothing", bridge: "selects one of them",
		tools: []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				var with string
				json.Unmarshal(m.arg("with"), &with)
				k.write(`{"jsonrpc":"2.0","id":` + string(m.ID) + with + "}\n")
			}))
		},
		test: func(h *host) {
			h.waitReady()
			h.answersWith(",'result':1,'error':null", "1", 0)
			h.answersWith(",'result':1,'error':{'code':-5,'message':'both'}", "1", 0)
			h.answersWith(",'result':null,'error':{'code':-5,'message':'both'}", "", -5)
			h.answersWith("", "", rpc.CodeInternal)
		},
	},
	{
		mode: "sends-requests", does: "sends requests to the bridge: `ping`, `roots/list`, `sampling/createMessage`",
		caller: "nothing", operator: "nothing", bridge: "answers `ping` with `{}`, and all other requests with -32601",
		tools: []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				var got []string
				for _, method := range []string{"ping", "roots/list", "sampling/createMessage"} {
					k.write(`{"jsonrpc":"2.0","id":"` + method + `","method":"` + method + `","params":{}}` + "\n")
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
		mode: "sends-notifications", does: "sends notifications",
		caller: "nothing", operator: "each on `SP.<id>.event`, byte for byte", bridge: "publishes them",
		tools: []string{"act"},
		child: func(k *testChild) {
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
			h.waitReady()
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
				case <-time.After(time.Minute):
					h.Fatalf("no event %s", want)
				}
			}
		},
	},
	{
		mode: "ignores-stdin", does: "stops reading its standard input, while 2,000 calls are waiting",
		caller:   "`timeout` (`ran: no` if the call was never written); after five `breaker_open`; after the restart, answers",
		operator: "the breaker `open`, then one restart: `it hangs: …`",
		bridge:   "limits its queue, and does not delay other extensions; sends a ping, and restarts the child after `hang_timeout`",
		alone:    true,
		tools:    []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) { hang() }))
		},
		set: func(s *config.Supervision) {
			s.MaxInflight, s.CallTimeout, s.HangTimeout = 4096, 5*time.Second, 500*time.Millisecond // all calls arrive before the first time-out
		},
		test: func(h *host) {
			h.waitReady()
			before := heap()
			var mu sync.Mutex
			codes := map[rpc.Code]int{}
			body := jsonrpc.AppendRequest(nil, []byte("1"), "tools/act", []byte(`{"text":"`+megabyte[:4000]+`"}`))
			inbox := h.w.nc.NewInbox()
			var all sync.WaitGroup
			all.Add(2000)
			if _, err := h.w.nc.Subscribe(inbox, func(m *nats.Msg) {
				mu.Lock()
				defer mu.Unlock()
				r, _ := jsonrpc.ParseReply(m.Data)
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
				h.Errorf("the calls ended with these codes: %v", codes)
			}
			h.waitForRestarts(1)
			if e := h.status().LastExit; e == nil || !strings.Contains(e.Cause, "it hangs") {
				h.Errorf("its last exit: %+v", e)
			}
			h.waitForSuccess()
		},
	},
}

// answersWith lets the child answer with these members (with ' instead of ") after jsonrpc and id.
func (h *host) answersWith(members, want string, code rpc.Code) {
	h.Helper()
	members = strings.ReplaceAll(members, "'", `\"`)
	got, err := h.call("act", `{"with":"`+members+`"}`)
	if code == 0 && (err != nil || got != want) || code != 0 && rpc.AsError(err).Code != code {
		h.Errorf("%s became %s, %v; want %s, %d", members, got, err, want, code)
	}
}
