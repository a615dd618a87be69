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

// answers is the test of a child whose oddity costs nobody anything: the tool answers want, again and again, and by
// the same process.
func answers(want string) func(h *host) {
	return func(h *host) {
		h.ready()
		pid := h.status().PID
		for range 3 {
			if got, err := h.call("act", `{"n":1}`); err != nil || got != want {
				h.Errorf("it answered %.200s, %v; want %s", got, err, want)
			}
			h.good()
		}
		h.sameLife(pid)
	}
}

// sameLife fails if the extension has another process than pid.
func (h *host) sameLife(pid int) {
	h.Helper()
	if now := h.status().PID; now != pid {
		h.Errorf("process %d was replaced by %d", pid, now)
	}
}

// smallLines makes a line of a megabyte too long.
func smallLines(s *config.Supervision) { s.MaxLine = 64 << 10 }

// tooLong is the test of an answer over max_line whose id can be made out.
func tooLong(h *host) {
	h.ready()
	pid := h.status().PID
	h.within(2*time.Second, "the failure", func() {
		_, err := h.call("act", "{}")
		if d := h.fails(err, rpc.CodeTooLarge, rpc.RanMaybe); d.Limit != 64<<10 || d.Size < 1<<20 {
			h.Errorf("size and limit: %+v", d)
		}
	})
	h.good()
	h.sameLife(pid)
	if n := h.skipped().LongLines; n != 1 {
		h.Errorf("%d long lines were counted", n)
	}
}

var megabyte = strings.Repeat("0123456789abcdef", 1<<16)

// byteFaults are children whose output is not what it should be, byte by byte.
var byteFaults = []fault{
	{
		mode: "banner", does: "prints a banner on standard output before the first message",
		caller: "nothing", operator: "`noise on standard output` in the log; counted in the control status",
		bridge: "skips and counts it",
		tools:  []string{"act"},
		kid: func(k *kid) {
			k.say("* * * Weather 2.0 * * *\n\tlistening on stdio\n[1] ready\n")
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
		mode: "noise-between", does: "prints to standard output between its messages: text, JSON that is no message, broken JSON",
		caller: "nothing", operator: "`noise on standard output` in the log, at most 20 lines at once and 2 a second; all counted in the control status",
		bridge: "skips and counts it",
		tools:  []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				k.say("DEBUG handling a call\n{\"level\":\"info\"}\n{broken\n\"text\"\n[]\n12\nnull\n")
				k.result(m, `"fine"`)
				k.say("DEBUG done\n")
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
		caller: "nothing", operator: "nothing", bridge: "takes it for the end of a line",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				k.say(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":"fine"}` + "\r\n")
			}))
		},
		test: answers(`"fine"`),
	},
	{
		mode: "blank-lines", does: "sends blank lines, and white space around its messages",
		caller: "nothing", operator: "nothing", bridge: "skips it",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				k.say("\n\n  \t\r\n \t{\"jsonrpc\" : \"2.0\" ,\t\"id\" : " + string(m.ID) + " , \"result\" : \"fine\" } \t\n\n")
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
		mode: "dribble", does: "sends its answer byte by byte, over seconds",
		caller: "the answer, when it is whole", operator: "nothing", bridge: "waits; the call's time goes on",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				for _, c := range []byte(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":"fine"}` + "\n") {
					k.say(string(c))
					rest(80 * time.Millisecond) // four seconds in all
				}
			}))
		},
		test: func(h *host) {
			h.ready()
			if got, err := h.call("act", "{}"); err != nil || got != `"fine"` {
				h.Errorf("it answered %s, %v", got, err)
			}
		},
	},
	{
		mode: "split-writes", does: "splits messages over writes, and writes several at once",
		caller: "nothing", operator: "nothing", bridge: "cuts at newlines only",
		tools: []string{"act"},
		kid: func(k *kid) {
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
				for _, at := range []int{70, 40, 1} { // from the back
					defer k.say(all[len(all)-at:])
					all = all[:len(all)-at]
				}
				k.say(all)
			}))
		},
		test: func(h *host) {
			h.ready()
			h.ownAnswers(4, "act")
			h.ownAnswers(8, "act")
		},
	},
	{
		mode: "invalid-utf8", does: "answers with bytes that are not UTF-8",
		caller: "U+FFFD in their place", operator: "nothing", bridge: "replaces them; the rest of the answer stays as it is",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) { k.result(m, "\"caf\xe9 \xff\xfe 9007199254740993\"") }))
		},
		test: answers("\"caf\ufffd \ufffd 9007199254740993\""), // a run of them is one
	},
	{
		mode: "broken-json", does: "answers with JSON that is none, or is nested 10,000 deep",
		caller:   "`internal` (`ran: maybe`) at once, where the answer's id can be made out",
		operator: "noise in log and control status", bridge: "drops it, goes on",
		tools: []string{"act", "deep"},
		kid: func(k *kid) {
			k.serve(map[string]func(message){
				"act":  func(m message) { k.result(m, `{"oops`) },
				"deep": func(m message) { k.result(m, strings.Repeat("[", 10_000)+strings.Repeat("]", 10_000)) },
			})
		},
		test: func(h *host) {
			h.ready()
			pid := h.status().PID
			for _, tool := range []string{"act", "deep"} {
				h.within(2*time.Second, "the failure", func() {
					_, err := h.call(tool, "{}")
					h.fails(err, rpc.CodeInternal, rpc.RanMaybe, "not valid JSON")
				})
			}
			h.good()
			h.sameLife(pid)
		},
	},
	{
		mode: "no-last-newline", does: "leaves the newline off its last answer, and exits",
		caller: "the answer", operator: "one restart", bridge: "takes the end of the output for the end of the line",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				k.say(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":"bye"}`)
				os.Exit(0)
			}))
		},
		test: func(h *host) {
			h.ready()
			if got, err := h.call("act", "{}"); err != nil || got != `"bye"` {
				h.Errorf("it answered %s, %v", got, err)
			}
			h.restarts(1)
			h.good()
		},
	},
	{
		mode: "long-line-id-first", does: "answers with a line over `max_line`, its id in front",
		caller: "`too_large` with size and limit (`ran: maybe`)", operator: "a long line in the control status",
		bridge: "throws the line away while it comes; the child lives on",
		tools:  []string{"act"},
		kid:    func(k *kid) { k.serve(only("act", func(m message) { k.result(m, `"`+megabyte+`"`) })) },
		set:    smallLines, test: tooLong,
	},
	{
		mode: "long-line-id-last", does: "answers with a line over `max_line`, its id at the end, behind other ids",
		caller: "`too_large` with size and limit (`ran: maybe`)", operator: "a long line in the control status", bridge: "looks for the id of the outermost object on the way",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				k.say(`{"result":{"id":9999,"text":"` + megabyte + `","ids":[{"id":1}]},"jsonrpc":"2.0","id":` + string(m.ID) + "}\n")
			}))
		},
		set: smallLines, test: tooLong,
	},
	{
		mode: "long-line-no-id", does: "writes a line over `max_line` in which there is no id",
		caller: "`timeout` (`ran: maybe`)", operator: "a long line in the control status",
		bridge: "drops and counts it; the child lives on",
		tools:  []string{"act"},
		kid:    func(k *kid) { k.serve(only("act", func(m message) { k.say(`{"text":"` + megabyte + "\"}\n") })) },
		set:    func(s *config.Supervision) { smallLines(s); s.CallTimeout = 300 * time.Millisecond },
		test: func(h *host) {
			h.ready()
			pid := h.status().PID
			_, err := h.ask("tools/act", "{}")
			h.fails(err, rpc.CodeTimeout, rpc.RanMaybe)
			h.good()
			h.sameLife(pid)
			if n := h.skipped().LongLines; n != 1 {
				h.Errorf("%d long lines were counted", n)
			}
		},
	},
	{
		mode: "endless-line", does: "writes without ever ending the line",
		caller: "`timeout`; when the line has 256 MiB, `extension_exited` (`ran: maybe`)", operator: "one restart, `a line of more than 256 MiB does not end`",
		bridge: "discards the line in bounded memory, and restarts the extension when the line has 256 MiB or four times `max_line`",
		alone:  true,
		tools:  []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) {
				for {
					k.say(megabyte)
				}
			}))
		},
		set: func(s *config.Supervision) {
			s.CallTimeout, s.HangTimeout, s.MaxLine = time.Minute, time.Minute, 1<<20
			s.ShutdownGrace = 200 * time.Millisecond
		},
		test: func(h *host) {
			h.ready()
			before := heap()
			_, err := h.ask("tools/act", "{}")
			h.fails(err, rpc.CodeExited, rpc.RanMaybe, "does not end")
			if grown := heap() - before; grown > 64<<20 {
				h.Errorf("the heap grew by %d bytes", grown)
			}
			h.recovers()
			h.restarts(1)
		},
	},
	{
		mode: "over-max-result", does: "answers with more than `max_result`",
		caller: "`too_large` with size and limit (`ran: maybe`)", operator: "nothing", bridge: "drops the answer",
		tools: []string{"act"},
		kid: func(k *kid) {
			k.serve(only("act", func(m message) { k.result(m, `"`+megabyte[:10_000]+`"`) }))
		},
		set: func(s *config.Supervision) { s.MaxResult = 4 << 10 },
		test: func(h *host) {
			h.ready()
			_, err := h.call("act", "{}")
			if d := h.fails(err, rpc.CodeTooLarge, rpc.RanMaybe); d.Limit != 4<<10 || d.Size != 10_002 {
				h.Errorf("size and limit: %+v", d)
			}
			h.good()
		},
	},
	{
		mode: "large-answer", does: "answers with 25 MB, where the server's `max_payload` is 1 MB",
		caller:   "exactly that, if it takes a stream (`extctl` and `mesh.Client` do); else `too_large` with size and limit",
		operator: "nothing", bridge: "sends chunks, as fast as the caller takes them",
		tools: []string{"act"},
		kid: func(k *kid) {
			answer := largeAnswer()
			k.serve(only("act", func(m message) { k.result(m, answer) }))
		},
		test: func(h *host) {
			h.ready()
			got, err := h.call("act", "{}")
			if err != nil || got != largeAnswer() {
				h.Errorf("%d bytes came, %v", len(got), err)
			}
			_, err = h.ask("tools/act", "{}")
			if d := h.fails(err, rpc.CodeTooLarge, rpc.RanMaybe); d.Limit == 0 || d.Size < 25<<20 {
				h.Errorf("size and limit: %+v", d)
			}
			h.good()
		},
	},
}

// largeAnswer is 25 MB in which every place differs from its neighbours.
func largeAnswer() string {
	var b bytes.Buffer
	b.WriteString(`"`)
	for n := 0; b.Len() < 25<<20; n++ {
		fmt.Fprintf(&b, "%d é,", n)
	}
	b.WriteString(`"`)
	return b.String()
}

// heap is how much memory is in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// ownAnswers makes n calls side by side, of which each has to be answered with its own number.
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
			h.Errorf("call %d was answered %s, %v", o.n, o.got, o.err)
		}
	}
}
