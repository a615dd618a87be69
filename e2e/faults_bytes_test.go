package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// answers tests a fault that has no effect on callers: the tool returns want every time, from the same process.
func answers(want string) func(h *host) {
	return func(h *host) {
		h.waitReady()
		pid := h.status().PID
		for range 3 {
			if got, err := h.call("act", `{"n":1}`); err != nil || got != want {
				h.Errorf("the answer is %.200s, %v; want %s", got, err, want)
			}
			h.callSucceeds()
		}
		h.sameProcess(pid)
	}
}

// sameProcess fails if the extension's process is not pid.
func (h *host) sameProcess(pid int) {
	h.Helper()
	if now := h.status().PID; now != pid {
		h.Errorf("process %d was replaced by %d", pid, now)
	}
}

// smallLines makes one megabyte too long for a line.
func smallLines(s *config.Supervision) { s.MaxLine = 64 << 10 }

// tooLong tests an answer longer than max_line in which the bridge can find the id.
func tooLong(h *host) {
	h.waitReady()
	pid := h.status().PID
	h.within(2*time.Second, "the failure", func() {
		_, err := h.call("act", "{}")
		if d := h.wantError(err, rpc.CodeTooLarge, rpc.RanMaybe); d.Limit != 64<<10 || d.Size < 1<<20 {
			h.Errorf("size and limit: %+v", d)
		}
	})
	h.callSucceeds()
	h.sameProcess(pid)
	if n := h.skipped().LongLines; n != 1 {
		h.Errorf("%d long lines were counted", n)
	}
}

var megabyte = strings.Repeat("0123456789abcdef", 1<<16)

// byteFaults are children that write a malformed stream of lines.
var byteFaults = []fault{
	{
		mode: "banner", does: "prints a banner on standard output before the first message",
		caller: "nothing", operator: "`noise on standard output` in the log; counted in the control status",
		bridge: "skips and counts it",
		tools:  []string{"act"},
		child: func(k *testChild) {
			k.write("* * * Weather 2.0 * * *\n\tlistening on stdio\n[1] ready\n")
			k.serve(only("act", func(m message) { k.result(m, `"fine"`) }))
		},
		test: func(h *host) {
			answers(`"fine"`)(h)
			if n := h.skipped().Noise; n != 3 {
				h.Errorf("%d lines of noise were counted", n)
			}
		},
	},
	{
		mode: "noise-between", does: "prints to standard output between its messages: text, JSON that is not JSON-RPC, broken JSON",
		caller: "nothing", operator: "`noise on standard output` in the log, at most 20 lines at once and 2 a second; all counted in the control status",
		bridge: "skips and counts it",
		tools:  []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				k.write("DEBUG handling a call\n{\"level\":\"info\"}\n{broken\n\"text\"\n[]\n12\nnull\n")
				k.result(m, `"fine"`)
				k.write("DEBUG done\n")
			}))
		},
		test: func(h *host) {
			answers(`"fine"`)(h)
			h.eventually("all of it is counted", func() bool { return h.skipped().Noise == 24 })
			if n := strings.Count(h.log.String(), "noise on standard output"); n < 20 || n > 24 {
				h.Errorf("%d lines of noise were logged", n)
			}
		},
	},
	{
		mode: "crlf", does: "ends its lines with CR LF",
		caller: "nothing", operator: "nothing", bridge: "accepts it as the end of a line",
		tools: []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				k.write(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":"fine"}` + "\r\n")
			}))
		},
		test: answers(`"fine"`),
	},
	{
		mode: "blank-lines", does: "sends blank lines, and white space around its messages",
		caller: "nothing", operator: "nothing", bridge: "ignores them",
		tools: []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				k.write("\n\n  \t\r\n \t{\"jsonrpc\" : \"2.0\" ,\t\"id\" : " + string(m.ID) + " , \"result\" : \"fine\" } \t\n\n")
			}))
		},
		test: func(h *host) {
			answers(`"fine"`)(h)
			if n := h.skipped().Noise; n != 0 {
				h.Errorf("%d lines of noise were counted", n)
			}
		},
	},
	{
		mode: "byte-by-byte", does: "sends its answer byte by byte, over seconds",
		caller: "the answer, when it is complete", operator: "nothing", bridge: "waits until the line is complete, at most for the call's timeout",
		tools: []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				for _, c := range []byte(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":"fine"}` + "\n") {
					k.write(string(c))
					pause(80 * time.Millisecond) // four seconds in all
				}
			}))
		},
		test: func(h *host) {
			h.waitReady()
			if got, err := h.call("act", "{}"); err != nil || got != `"fine"` {
				h.Errorf("the answer is %s, %v", got, err)
			}
		},
	},
	{
		mode: "split-writes", does: "splits messages over several writes, and writes several messages at once",
		caller: "nothing", operator: "nothing", bridge: "splits the output at newlines only",
		tools: []string{"act"},
		child: func(k *testChild) {
			var waiting []message
			k.serve(only("act", func(m message) {
				if waiting = append(waiting, m); len(waiting) < 4 {
					return
				}
				all := ""
				for _, m := range waiting {
					all += `{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + string(m.arg("n")) + "}\n"
				}
				waiting = nil
				for _, at := range []int{70, 40, 1} { // counted from the end
					defer k.write(all[len(all)-at:])
					all = all[:len(all)-at]
				}
				k.write(all)
			}))
		},
		test: func(h *host) {
			h.waitReady()
			h.ownAnswers(4, "act")
			h.ownAnswers(8, "act")
		},
	},
	{
		mode: "invalid-utf8", does: "answers with bytes that are not UTF-8",
		caller: "U+FFFD instead of these bytes", operator: "nothing", bridge: "replaces them; the rest of the answer is not changed",
		tools: []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) { k.result(m, "\"caf\xe9 \xff\xfe 9007199254740993\"") }))
		},
		test: answers("\"caf\ufffd \ufffd 9007199254740993\""), // consecutive invalid bytes become one U+FFFD
	},
	{
		mode: "broken-json", does: "answers with invalid JSON, or with JSON nested 10,000 levels deep",
		caller:   "`internal` (`ran: maybe`) at once, if the bridge can find the id of the answer",
		operator: "noise in log and control status", bridge: "drops the answer and continues",
		tools: []string{"act", "deep"},
		child: func(k *testChild) {
			k.serve(map[string]func(message){
				"act":  func(m message) { k.result(m, `{"oops`) },
				"deep": func(m message) { k.result(m, strings.Repeat("[", 10_000)+strings.Repeat("]", 10_000)) },
			})
		},
		test: func(h *host) {
			h.waitReady()
			pid := h.status().PID
			for _, tool := range []string{"act", "deep"} {
				h.within(2*time.Second, "the failure", func() {
					_, err := h.call(tool, "{}")
					h.wantError(err, rpc.CodeInternal, rpc.RanMaybe, "not valid JSON")
				})
			}
			h.callSucceeds()
			h.sameProcess(pid)
		},
	},
	{
		mode: "no-last-newline", does: "exits after an answer without a newline at its end",
		caller: "the answer", operator: "one restart", bridge: "treats the end of the output as the end of the line",
		tools: []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				k.write(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":"bye"}`)
				os.Exit(0)
			}))
		},
		test: func(h *host) {
			h.waitReady()
			if got, err := h.call("act", "{}"); err != nil || got != `"bye"` {
				h.Errorf("the answer is %s, %v", got, err)
			}
			h.waitForRestarts(1)
			h.callSucceeds()
		},
	},
	{
		mode: "long-line-id-first", does: "answers with a line longer than `max_line` that begins with the id",
		caller: "`too_large` with size and limit (`ran: maybe`)", operator: "a long line counted in the control status",
		bridge: "discards the line while it arrives; does not stop the child",
		tools:  []string{"act"},
		child:  func(k *testChild) { k.serve(only("act", func(m message) { k.result(m, `"`+megabyte+`"`) })) },
		set:    smallLines, test: tooLong,
	},
	{
		mode: "long-line-id-last", does: "answers with a line longer than `max_line` that ends with the id, and contains other ids before",
		caller: "`too_large` with size and limit (`ran: maybe`)", operator: "a long line counted in the control status", bridge: "discards the line while it arrives, and finds the id of the outermost object in it",
		tools: []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				k.write(`{"result":{"id":9999,"text":"` + megabyte + `","ids":[{"id":1}]},"jsonrpc":"2.0","id":` + string(m.ID) + "}\n")
			}))
		},
		set: smallLines, test: tooLong,
	},
	{
		mode: "long-line-no-id", does: "writes a line longer than `max_line` without an id",
		caller: "`timeout` (`ran: maybe`)", operator: "a long line counted in the control status",
		bridge: "discards and counts it; does not stop the child",
		tools:  []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) { k.write(`{"text":"` + megabyte + "\"}\n") }))
		},
		set: func(s *config.Supervision) { smallLines(s); s.CallTimeout = 300 * time.Millisecond },
		test: func(h *host) {
			h.waitReady()
			pid := h.status().PID
			_, err := h.request("tools/act", "{}")
			h.wantError(err, rpc.CodeTimeout, rpc.RanMaybe)
			h.callSucceeds()
			h.sameProcess(pid)
			if n := h.skipped().LongLines; n != 1 {
				h.Errorf("%d long lines were counted", n)
			}
		},
	},
	{
		mode: "endless-line", does: "writes a line that never ends",
		caller: "`timeout`; when the line reaches 256 MiB, `extension_exited` (`ran: maybe`)", operator: "one restart: `a line of more than 256 MiB does not end`",
		bridge: "discards the line in bounded memory, and restarts the extension when the line reaches 256 MiB, or four times `max_line` if that is more",
		alone:  true,
		tools:  []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) {
				for {
					k.write(megabyte)
				}
			}))
		},
		set: func(s *config.Supervision) {
			s.CallTimeout, s.HangTimeout, s.MaxLine = time.Minute, time.Minute, 1<<20
			s.ShutdownGrace = 200 * time.Millisecond
		},
		test: func(h *host) {
			h.waitReady()
			before := heap()
			_, err := h.request("tools/act", "{}")
			h.wantError(err, rpc.CodeExited, rpc.RanMaybe, "does not end")
			if grown := heap() - before; grown > 64<<20 {
				h.Errorf("the heap grew by %d bytes", grown)
			}
			h.waitForSuccess()
			h.waitForRestarts(1)
		},
	},
	{
		mode: "over-max-result", does: "answers with more than `max_result`",
		caller: "`too_large` with size and limit (`ran: maybe`)", operator: "nothing", bridge: "drops the answer",
		tools: []string{"act"},
		child: func(k *testChild) {
			k.serve(only("act", func(m message) { k.result(m, `"`+megabyte[:10_000]+`"`) }))
		},
		set: func(s *config.Supervision) { s.MaxResult = 4 << 10 },
		test: func(h *host) {
			h.waitReady()
			_, err := h.call("act", "{}")
			if d := h.wantError(err, rpc.CodeTooLarge, rpc.RanMaybe); d.Limit != 4<<10 || d.Size != 10_002 {
				h.Errorf("size and limit: %+v", d)
			}
			h.callSucceeds()
		},
	},
	{
		mode: "large-answer", does: "answers with 25 MB, where the server's `max_payload` is 1 MB",
		caller:   "the complete answer if it requests a stream, as `extctl` and `mesh.Client` do; otherwise `too_large` with size and limit",
		operator: "nothing", bridge: "sends the answer in chunks, as fast as the caller acknowledges them",
		tools: []string{"act"},
		child: func(k *testChild) {
			answer := largeAnswer()
			k.serve(only("act", func(m message) { k.result(m, answer) }))
		},
		test: func(h *host) {
			h.waitReady()
			got, err := h.call("act", "{}")
			if err != nil || got != largeAnswer() {
				h.Errorf("%d bytes came, %v", len(got), err)
			}
			_, err = h.request("tools/act", "{}")
			if d := h.wantError(err, rpc.CodeTooLarge, rpc.RanMaybe); d.Limit == 0 || d.Size < 25<<20 {
				h.Errorf("size and limit: %+v", d)
			}
			h.callSucceeds()
		},
	},
}

// largeAnswer is 25 MB of text in which a lost, repeated or reordered part is detected.
func largeAnswer() string {
	var b bytes.Buffer
	b.WriteString(`"`)
	for n := 0; b.Len() < 25<<20; n++ {
		fmt.Fprintf(&b, "%d é,", n)
	}
	b.WriteString(`"`)
	return b.String()
}

// heap returns the size of the heap after a garbage collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// ownAnswers makes n calls in parallel; each must be answered with its own number.
func (h *host) ownAnswers(n int, tool string) {
	h.Helper()
	type outcome struct {
		n   int
		got string
		err error
	}
	all := make(chan outcome, n)
	for i := range n {
		go func() { // ends with its call
			args, _ := json.Marshal(map[string]int{"n": i})
			got, err := h.call(tool, string(args))
			all <- outcome{i, got, err}
		}()
	}
	for range n {
		if o := <-all; o.err != nil || o.got != fmt.Sprint(o.n) {
			h.Errorf("the answer to call %d is %s, %v", o.n, o.got, o.err)
		}
	}
}
