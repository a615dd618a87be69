package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// lister is an MCP server that answers each method, and each page of it, with the next of these results. An answer that
// begins with ! is an error; "hang" waits for the end of the context.
type lister struct {
	fakeLink
	capabilities string
	answers      map[string][]string
	cursors      []string
}

func (l *lister) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if method == "initialize" {
		return json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":` + l.capabilities + `,"serverInfo":{},"lists":{"prompts":{"count":99}}}`), nil
	}
	if len(params) > 0 {
		l.cursors = append(l.cursors, string(params))
	}
	answers := l.answers[method]
	if len(answers) == 0 {
		return nil, &rpc.Error{Code: rpc.CodeMethodNotFound, Message: "Method not found"}
	}
	if len(answers) > 1 {
		l.answers[method] = answers[1:]
	}
	switch answer := answers[0]; {
	case answer == "hang":
		<-ctx.Done()
		return nil, rpc.Errorf(rpc.CodeTimeout, rpc.RanMaybe, "timed out")
	case answer == "exit":
		return nil, rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "exited")
	case answer == "refuse":
		return nil, &rpc.Error{Code: rpc.CodeExited, Message: "database not connected"} // many servers use -32000 for everything
	case strings.HasPrefix(answer, "slow "):
		if !pause.For(ctx, 15*time.Second) {
			return nil, rpc.Errorf(rpc.CodeTimeout, rpc.RanMaybe, "timed out")
		}
		return json.RawMessage(strings.TrimPrefix(answer, "slow ")), nil
	case strings.HasPrefix(answer, "!"):
		return nil, &rpc.Error{Code: -32603, Message: answer[1:]}
	default:
		return json.RawMessage(answer), nil
	}
}

func (l *lister) handshake(t *testing.T) *handshake {
	t.Helper()
	hs, err := exchangeHandshake(t.Context(), l, &workload{announce: wire.Announce{Parent: "p"}}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return hs
}

func TestListings(t *testing.T) {
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, ","+format, i)
		}
		return b.String()[1:]
	}
	const everything = `{"prompts":{},"resources":{}}`
	for name, tt := range map[string]struct {
		capabilities string
		answers      map[string][]string
		method, want string // the response; "": none
		count        int
		problem      string
		incomplete   bool
	}{
		"pages, in the server's bytes": {everything, map[string][]string{"prompts/list": {`{"prompts":[ {"name":"b", "n":1.0} ],"nextCursor":"2\u0041"}`, `{"prompts":[{"z":1,"name":"a"}]}`}},
			"prompts/list", `{"prompts":[{"name":"b", "n":1.0},{"z":1,"name":"a"}]}`, 2, "", false},
		"not declared":    {`{"logging":{}}`, map[string][]string{"prompts/list": {`{"prompts":[{"name":"a"}]}`}}, "prompts/list", "", 0, "", false},
		"no templates":    {everything, map[string][]string{"resources/list": {`{"resources":[]}`}}, "resources/templates/list", "", 0, "", false},
		"empty":           {everything, map[string][]string{"resources/list": {`{"resources":[]}`}}, "resources/list", `{"resources":[]}`, 0, "", false},
		"templates":       {everything, map[string][]string{"resources/templates/list": {`{"resourceTemplates":[{"uriTemplate":"a://{b}"}]}`}}, "resources/templates/list", `{"resourceTemplates":[{"uriTemplate":"a://{b}"}]}`, 1, "", false},
		"bad entries":     {everything, map[string][]string{"resources/list": {`{"resources":[1.0,{"uri":""},{"uri":"a:b"},{"uri":"a:b"},{"uri":"` + strings.Repeat("x", maxListingEntry) + `"}]}`}}, "resources/list", `{"resources":[{"uri":"a:b"}]}`, 1, "it is not an object", false},
		"not a list":      {everything, map[string][]string{"resources/list": {`{"resources":{}}`}}, "resources/list", "", 0, "the result of resources/list", true},
		"an error":        {everything, map[string][]string{"resources/list": {`!the disk is full`}}, "resources/list", "", 0, "the disk is full", true},
		"endless pages":   {everything, map[string][]string{"resources/list": {`{"resources":[{"uri":"a:b"}],"nextCursor":"x"}`}}, "resources/list", `{"resources":[{"uri":"a:b"}]}`, 1, "the pages do not end", false},
		"an empty cursor": {everything, map[string][]string{"resources/list": {`{"resources":[{"uri":"a:b"}],"nextCursor":""}`}}, "resources/list", `{"resources":[{"uri":"a:b"}]}`, 1, "", false},
		"too many": {everything, map[string][]string{"resources/templates/list": {`{"resourceTemplates":[` + many(300, `{"uriTemplate":"%d"}`) + `]}`}},
			"resources/templates/list", `{"resourceTemplates":[` + many(200, `{"uriTemplate":"%d"}`) + `]}`, 200, "is cut after 200 entries", false},
	} {
		t.Run(name, func(t *testing.T) {
			l := &lister{capabilities: tt.capabilities, answers: tt.answers}
			hs := l.handshake(t)
			got, count := "", 0
			if found := hs.listings[tt.method]; found != nil {
				got, count = string(found.answer), found.Count
				if found.Digest != wire.ListDigest(found.answer) {
					t.Errorf("the digest is %s", found.Digest)
				}
			}
			problems := fmt.Sprint(hs.problems)
			if got != tt.want || count != tt.count || hs.incomplete != tt.incomplete || !strings.Contains(problems, tt.problem) || tt.problem == "" && len(hs.problems) > 0 {
				t.Errorf("%d entries: %.300s\nproblems: %.300s, incomplete: %v", count, got, problems, hs.incomplete)
			}
			for _, cursor := range l.cursors {
				if cursor != `{"cursor":"2\u0041"}` && cursor != `{"cursor":""}` && cursor != `{"cursor":"x"}` {
					t.Errorf("sent %s", cursor)
				}
			}
		})
	}
}

// TestListingsInAnswers: the bridge answers lists itself, and the registry gets their sizes: not those that a child has
// written into its answer.
func TestListingsInAnswers(t *testing.T) {
	l := &lister{capabilities: `{"prompts":{},"resources":{}}`, answers: map[string][]string{"resources/list": {`{"resources":[{"uri":"a:b"}]}`}}}
	hs := l.handshake(t)
	parsed, err := wire.ParseHandshake(hs.initialize)
	if err != nil || parsed.Server.Lists.Prompts != nil || parsed.Server.Lists.Templates != nil || parsed.Server.Lists.Resources == nil || parsed.Server.Lists.Resources.Count != 1 {
		t.Errorf("%s: %+v, %v", hs.initialize, parsed.Server, err)
	}
	f := testForwarder(&scriptedLink{answer: result(`{"forwarded":1}`)})
	f.handshake.Store(hs)
	for method, want := range map[string]string{"resources/list": `{"resources":[{"uri":"a:b"}]}`, "prompts/list": `{"forwarded":1}`} {
		if got, err := f.Handle(t.Context(), &rpc.Request{Method: method}); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v", method, got, err)
		}
	}
	l.answers["resources/list"] = []string{`{"resources":[{"uri":"a:c"}]}`}
	if other := l.handshake(t); other.hash == hs.hash || other.dialect != manifest.MCP {
		t.Error("another list has the same hash")
	}
}

// TestListingsThatHang: a server that does not answer a list is ready without it; the former list is kept.
func TestListingsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lister{capabilities: `{"prompts":{},"resources":{}}`, answers: map[string][]string{
			"prompts/list": {`{"prompts":[{"name":"a"}]}`, "hang"}, "resources/list": {"hang"}, "tools/list": {`{"tools":[]}`}}}
		hs := l.handshake(t)
		if !hs.incomplete || hs.listings["prompts/list"] == nil || hs.listings["resources/list"] != nil {
			t.Errorf("%+v", hs)
		}
		again, err := readTools(t.Context(), l, hs, &workload{announce: wire.Announce{Parent: "p"}}, false)
		if err != nil || !again.incomplete || again.listings["prompts/list"] != hs.listings["prompts/list"] {
			t.Errorf("%+v, %v", again, err)
		}
	})
	synctest.Test(t, func(t *testing.T) { // also over a restart
		l := &lister{capabilities: `{"prompts":{}}`, answers: map[string][]string{"prompts/list": {`{"prompts":[{"name":"a"}]}`, "hang"}, "tools/list": {`{"tools":[]}`}}}
		before := l.handshake(t).listings
		hs, err := exchangeHandshake(t.Context(), l, &workload{announce: wire.Announce{Parent: "p"}}, "", before)
		if err != nil || !hs.incomplete || hs.listings["prompts/list"] != before["prompts/list"] {
			t.Errorf("after a restart: %+v, %v", hs, err)
		}
	})
	l := &lister{capabilities: `{"prompts":{}}`, answers: map[string][]string{"prompts/list": {"exit"}}}
	if _, err := exchangeHandshake(t.Context(), l, &workload{}, "", nil); rpc.AsError(err).Code != rpc.CodeExited {
		t.Errorf("a server that exits: %v", err)
	}
}

// TestSlowPages: what was read of a list counts if its pages take too long.
func TestSlowPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lister{capabilities: `{"resources":{"listChanged":true}}`, answers: map[string][]string{
			"resources/list": {`{"resources":[{"uri":"a"}],"nextCursor":"2"}`, "hang"}, "tools/list": {`{"tools":[]}`}}}
		hs := l.handshake(t)
		if !hs.incomplete || hs.listings["resources/list"] == nil || len(hs.problems) == 0 || !strings.Contains(hs.problems[0].Message, "take too long; 1 entries") {
			t.Errorf("%+v", hs)
		}
		l.answers["resources/list"] = []string{`{"resources":[{"uri":"a"}],"nextCursor":"2"}`, `{"resources":[{"uri":"b"}]}`}
		l.answers["resources/templates/list"] = []string{`{"resourceTemplates":[]}`}
		whole, err := readTools(t.Context(), l, hs, &workload{announce: wire.Announce{Parent: "p"}}, false)
		if err != nil || whole.incomplete || whole.listings["resources/list"].Count != 2 {
			t.Fatalf("%+v, %v", whole, err)
		}
		l.answers["resources/list"] = []string{`{"resources":[{"uri":"a"}],"nextCursor":"2"}`, "hang"}
		if again, err := readTools(t.Context(), l, whole, &workload{announce: wire.Announce{Parent: "p"}}, false); err != nil || again.listings["resources/list"].Count != 2 || !again.incomplete || len(again.problems) != 1 {
			t.Errorf("a stall replaces the complete list: %+v, %v", again, err)
		}
		if !hs.announcesChanges() || (&handshake{dialect: manifest.MCP, raw: json.RawMessage(`{"capabilities":{"tools":{},"prompts":{"listChanged":true}}}`)}).announcesChanges() {
			t.Error("whether it announces changes")
		}
	})
}

// spawning is a server that starts a process for each request.
type spawning struct {
	*lister
	start time.Duration
}

func (s spawning) Call(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if !pause.For(ctx, s.start) {
		return nil, rpc.Errorf(rpc.CodeTimeout, rpc.RanMaybe, "timed out")
	}
	return s.lister.Call(ctx, method, params)
}

// TestListingsOfSlowServer: a server that starts a process for each request has the time for all of its lists, in the handshake
// and later, but not more than the start may take.
func TestListingsOfSlowServer(t *testing.T) {
	for _, tt := range []struct {
		start, limit time.Duration
		complete     bool
	}{{4 * time.Second, 30 * time.Second, true}, {12 * time.Second, 30 * time.Second, false}} {
		synctest.Test(t, func(t *testing.T) {
			l := spawning{&lister{capabilities: `{"prompts":{},"resources":{}}`, answers: map[string][]string{"tools/list": {`{"tools":[]}`},
				"prompts/list": {`{"prompts":[]}`}, "resources/list": {`{"resources":[]}`}, "resources/templates/list": {`{"resourceTemplates":[]}`}}}, tt.start}
			w := &workload{announce: wire.Announce{Parent: "p"}, transport: manifest.Transport{Type: manifest.HTTP}}
			w.limits.start.Idle, w.limits.start.Max = tt.limit, tt.limit
			began := time.Now()
			hs, err := exchangeHandshake(t.Context(), l, w, "", nil)
			if took := time.Since(began); err != nil || took >= tt.limit || hs.incomplete == tt.complete {
				t.Errorf("after %s: %+v, %v", took, hs, err)
			}
			if again, err := readTools(t.Context(), l, hs, w, false); tt.complete && (err != nil || again.incomplete) {
				t.Errorf("again: %+v, %v", again, err)
			}
		})
	}
}

// TestListingsThatAreRefused: only the end of a child ends the handshake, not an error of its own with the same code, nor the
// end of one request over HTTP.
func TestListingsThatAreRefused(t *testing.T) {
	for answer, w := range map[string]*workload{
		"refuse": {announce: wire.Announce{Parent: "p"}},
		"exit":   {announce: wire.Announce{Parent: "p"}, transport: manifest.Transport{Type: manifest.HTTP}},
	} {
		l := &lister{capabilities: `{"prompts":{}}`, answers: map[string][]string{"prompts/list": {answer}, "tools/list": {`{"tools":[]}`}}}
		if hs, err := exchangeHandshake(t.Context(), l, w, "", nil); err != nil || !hs.incomplete {
			t.Errorf("%s: %+v, %v", answer, hs, err)
		}
	}
}

// TestSlowTools: the tools may take as long to list again as at the start.
func TestSlowTools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tools = `{"tools":[{"name":"a","inputSchema":{"type":"object"}}]}`
		l := &lister{capabilities: `{"tools":{}}`, answers: map[string][]string{"tools/list": {tools, "slow " + tools}}}
		hs := l.handshake(t)
		w := &workload{announce: wire.Announce{Parent: "p"}}
		if _, err := readTools(t.Context(), &lister{answers: map[string][]string{"tools/list": {"slow " + tools}}}, hs, w, false); err == nil {
			t.Error("there is no limit")
		}
		w.limits.start.Max = 30 * time.Second
		if again, err := readTools(t.Context(), l, hs, w, false); err != nil || len(again.tools) != 1 {
			t.Errorf("%+v, %v", again, err)
		}
	})
}

// TestToolsThatAreRefused: a server that answers tools/list with an error, until somebody logs in, may offer other lists meanwhile.
func TestToolsThatAreRefused(t *testing.T) {
	l := &lister{capabilities: `{"tools":{},"prompts":{}}`, answers: map[string][]string{
		"tools/list": {"refuse"}, "prompts/list": {`{"prompts":[]}`, `{"prompts":[{"name":"a"}]}`}}}
	hs := l.handshake(t)
	w := &workload{announce: wire.Announce{Parent: "p"}}
	again, err := readTools(t.Context(), l, hs, w, true)
	if err != nil || !again.incomplete || again.hash == hs.hash {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err := readTools(t.Context(), l, hs, w, false); err == nil {
		t.Error("tools that a server had are given up")
	}
}
