package door

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// failure is why a call failed, as a model reads it: what happened, whether the tool may have run, and what to do. It has
// no subject, host, instance or stack.
type failure struct {
	text string
	info failureInfo
}

// failureInfo is the machine-readable part, _meta["extmesh/error"].
type failureInfo struct {
	Kind       string  `json:"kind"`
	Ran        rpc.Ran `json:"ran"`
	Extension  string  `json:"extension,omitempty"`
	Tool       string  `json:"tool,omitempty"`
	Prompt     string  `json:"prompt,omitempty"`
	Resource   string  `json:"resource,omitempty"`
	State      string  `json:"state,omitempty"`
	Status     string  `json:"status,omitempty"`
	RetryAfter int64   `json:"retry_after_ms,omitempty"`
}

// result is the failure as the result of a call.
func (f *failure) result(era mcp.Era) []byte {
	text, err := plainjson.Marshal(struct {
		IsError bool             `json:"isError"`
		Content []map[string]any `json:"content"`
		Meta    map[string]any   `json:"_meta"`
	}{true, []map[string]any{{"type": "text", "text": f.text}}, map[string]any{"extmesh/error": f.info}})
	if err != nil { // strings and numbers always encode
		panic(err)
	}
	return era.Complete(text)
}

// to is the result of a request that has failed. Arguments that do not fit are not a failure of the mesh.
func (f *failure) to(q *request) []byte {
	q.failed = f.info.Kind != rpc.CodeInvalidParams.Kind()
	return f.result(q.era)
}

// error is the failure of a request whose result has no place for it.
func (f *failure) error() *rpc.Error { return mcp.NewError(rpc.CodeInternal, f.text, f.info) }

// newFailure makes a failure of joined sentences.
func newFailure(t *callee, kind rpc.Code, ran rpc.Ran, sentences ...string) *failure {
	f := &failure{
		text: strings.Join(sentences, " "),
		info: failureInfo{Kind: kind.Kind(), Ran: ran, Extension: t.id},
	}
	switch t.noun {
	case nounPrompt:
		f.info.Prompt = t.name
	case nounResource:
		f.info.Resource = t.name
	default:
		f.info.Tool = t.name
	}
	return f
}

const (
	retrySoon   = "Try again in a few seconds."
	tellUser    = "Trying again at once will not help: tell the user if the tool is needed."
	checkFirst  = "It may have taken effect: check before you repeat it."
	smallerArgs = "Send less at once."
)

// The nouns of what is not a tool.
const (
	nounPrompt   = "prompt"
	nounResource = "resource"
)

func (t *callee) notRun() string {
	if t.noun != "" {
		return "The " + t.noun + " was not read."
	}
	return t.name + " was not run."
}

func overloaded(t *callee, limit int) *failure {
	return newFailure(t, rpc.CodeOverloaded, rpc.RanNo,
		fmt.Sprintf("%d calls are already running, which is the limit.", limit), t.notRun(), "Call it again when some of them have ended.")
}

func unreachable(t *callee) *failure {
	return newFailure(t, rpc.CodeUnavailable, rpc.RanNo, "The tool mesh is not reachable at the moment.", t.notRun(), retrySoon)
}

// noMesh is the failure of a call that cannot be sent.
func noMesh(t *callee, err error) *failure {
	if errors.Is(err, errNoMesh) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return unreachable(&callee{noun: t.noun, name: t.name})
	}
	return newFailure(t, rpc.CodeUnavailable, rpc.RanNo, "The tool mesh is not reachable with the credentials of this client.", t.notRun(), tellUser)
}

func misfit(t *callee, why error) *failure {
	return newFailure(t, rpc.CodeInvalidParams, rpc.RanNo,
		fmt.Sprintf("The arguments of %s do not match its schema: %s.", t.name, firstLine(why.Error(), 400)), t.notRun(), "Correct them and call it again.")
}

func tooLarge(t *callee, size, limit int) *failure {
	return newFailure(t, rpc.CodeTooLarge, rpc.RanMaybe,
		fmt.Sprintf("The result of %s is %s, over the limit of %s.", t.name, bytesText(int64(size)), bytesText(int64(limit))),
		t.hasRun()+"Request less at once.")
}

// explain is why a call failed. err is not an extension's own error.
func explain(t *callee, err error, timeout time.Duration, now time.Time) *failure {
	if errors.Is(err, mesh.ErrDenied) {
		return newFailure(t, rpc.CodeUnavailable, rpc.RanNo, fmt.Sprintf("This client may not use %s.", t.where()), t.notRun())
	}
	if errors.Is(err, errDraining) {
		return newFailure(t, rpc.CodeUnavailable, rpc.RanMaybe, fmt.Sprintf("The MCP server is stopping, and has cancelled the call of %s.", t.name), checkFirst)
	}
	e, ok := errors.AsType[*rpc.Error](err)
	if !ok { // the connection is closed or draining, and the call was not sent
		return unreachable(&callee{noun: t.noun, name: t.name})
	}
	d := e.Details()
	f := explainCode(t, e, d, timeout, now)
	f.info.Kind, f.info.Ran = d.Kind, d.Ran
	f.info.State, f.info.Status, f.info.RetryAfter = d.State, d.Status, d.RetryAfterMS
	return f
}

func (t *callee) where() string {
	if t.id == "" {
		return "its extension"
	}
	return t.id
}

func explainCode(t *callee, e *rpc.Error, d rpc.Details, timeout time.Duration, now time.Time) *failure {
	fail := func(sentences ...string) *failure { return newFailure(t, e.Code, d.Ran, sentences...) }
	switch e.Code {
	case rpc.CodeInvalidParams:
		return misfit(t, errors.New(strings.TrimSuffix(e.Message, ".")))
	case rpc.CodeMethodNotFound:
		noun := cmp.Or(t.noun, "tool")
		return fail(fmt.Sprintf("%s does not have the %s %s at the moment.", t.where(), noun, t.name), t.notRun(), "List the "+noun+"s again.")
	case rpc.CodeUnavailable:
		switch {
		case d.Ran == rpc.RanMaybe && d.Status != "": // of a proxy before an HTTP server
			return fail(fmt.Sprintf("The server of %s answered %s.", t.where(), firstLine(d.Status, 100)), t.repeat())
		case d.Ran == rpc.RanMaybe: // the connection was closed
			return fail(fmt.Sprintf("The connection to the tool mesh was lost while %s was running.", t.name), t.repeat())
		}
		return explainAbsence(t, d, now)
	case rpc.CodeExited:
		return explainExit(t, d)
	case rpc.CodeTimeout:
		if d.Ran == rpc.RanNo {
			return fail(fmt.Sprintf("There was no time left to run %s.", t.name), t.notRun(), "Call it again.")
		}
		return fail(fmt.Sprintf("%s did not answer within %s, and was cancelled.", t.name, durationText(timeout)), t.repeat())
	case rpc.CodeBreakerOpen:
		return fail(fmt.Sprintf("%s receives no calls for now, because it did not answer several calls in time.", t.where()), t.notRun(), retryAfter(d))
	case rpc.CodeOverloaded:
		if d.Ran != rpc.RanNo { // for its answer
			return fail(fmt.Sprintf("The result of %s was discarded, because its host has no memory for it at the moment.", t.name), t.repeat())
		}
		return fail(fmt.Sprintf("%s is already running as many calls as it accepts%s.", t.where(), limitText(d.Limit)), t.notRun(), retryAfter(d))
	case rpc.CodeTooLarge:
		return explainSize(t, d)
	case rpc.CodeCancelled:
		if d.Ran == rpc.RanNo {
			return fail(t.name+" was cancelled by an operator or a shutdown.", t.notRun())
		}
		return fail(t.name+" was cancelled by an operator or a shutdown.", t.repeat())
	}
	if d.Ran == rpc.RanNo {
		return fail(fmt.Sprintf("%s failed inside %s: %s.", t.name, t.where(), firstLine(e.Message, 300)), t.notRun())
	}
	return fail(fmt.Sprintf("%s failed inside %s: %s.", t.name, t.where(), firstLine(e.Message, 300)), t.repeat())
}

// explainAbsence is why no instance takes calls, as far as the catalog shows it.
func explainAbsence(t *callee, d rpc.Details, now time.Time) *failure {
	fail := func(what, advice string) *failure {
		return newFailure(t, rpc.CodeUnavailable, rpc.RanNo, what, t.notRun(), advice)
	}
	id := t.where()
	switch heartbeat.State(d.State) {
	case heartbeat.Restarting, heartbeat.Spawning:
		return fail(id+" is restarting and did not become ready in time.", retrySoon)
	case heartbeat.Lost:
		what := id + " does not respond: nothing has been received from it"
		if s := t.extension.State; s != nil && !s.Since.IsZero() && now.After(s.Since) {
			what += " for more than " + durationText(now.Sub(s.Since))
		}
		return fail(what+".", tellUser)
	case heartbeat.Failed:
		return fail(fmt.Sprintf("%s does not start: %s.", id, reasonText(d.Reason)), tellUser)
	case heartbeat.Gated:
		return fail(fmt.Sprintf("%s is not set up: %s.", id, reasonText(d.Reason)), "The user has to set it up before it can be used.")
	case heartbeat.Draining, heartbeat.Shutdown:
		return fail(id+" is being stopped or has been stopped.", tellUser)
	case heartbeat.Ready:
		return fail(id+" is not reachable at the moment.", retrySoon)
	}
	if s := t.extension.State; s == nil || s.State != "" { // no answer of the mesh: that has the state of the catalog
		return fail("The tool mesh is not reachable at the moment.", retrySoon)
	}
	return fail(id+" is not reachable at the moment.", retrySoon)
}

func explainExit(t *callee, d rpc.Details) *failure {
	what := fmt.Sprintf("%s stopped while it was running %s", t.where(), t.name)
	if d.Status != "" {
		what += " (" + firstLine(d.Status, 100) + ")"
	}
	if d.Ran == rpc.RanNo {
		return newFailure(t, rpc.CodeExited, d.Ran, t.where()+" stopped.", t.notRun(), retrySoon)
	}
	return newFailure(t, rpc.CodeExited, d.Ran, what+".", t.repeat(), "The extension restarts automatically, usually within seconds.")
}

func explainSize(t *callee, d rpc.Details) *failure {
	if d.Ran == rpc.RanNo {
		return newFailure(t, rpc.CodeTooLarge, d.Ran,
			fmt.Sprintf("The arguments of %s are %s, over the limit of %s.", t.name, bytesText(d.Size), bytesText(d.Limit)), t.notRun(), smallerArgs)
	}
	return tooLarge(t, int(d.Size), int(d.Limit))
}

// repeat is the sentence about a call that may have run.
func (t *callee) repeat() string {
	if t.noun != "" {
		return "It can be requested again."
	}
	if t.item != nil && t.item.isSafe() {
		return "It can be called again safely."
	}
	return checkFirst
}

func (t *callee) hasRun() string {
	if t.noun != "" {
		return ""
	}
	return "It has run. "
}

func retryAfter(d rpc.Details) string {
	if d.RetryAfterMS <= 0 {
		return retrySoon
	}
	return fmt.Sprintf("Try again in about %s.", durationText(time.Duration(d.RetryAfterMS)*time.Millisecond))
}

func limitText(n int64) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" (%d)", n)
}

func reasonText(reason string) string {
	if reason == "" {
		return "no reason is known"
	}
	return firstLine(reason, 200)
}

// firstLine is the first line of text from an extension or the mesh, cut, without control characters and a full stop.
func firstLine(s string, n int) string {
	s, _, _ = strings.Cut(s, "\n")
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return -1
		}
		return r
	}, s)
	return strings.TrimSuffix(clip(strings.TrimSpace(s), n), ".")
}

// durationText rounds a duration so that it is easy to read: 5m, 2m10s, 1s.
func durationText(d time.Duration) string {
	d = max(d.Round(time.Second), time.Second)
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func bytesText(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d KB", (n+1023)>>10)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/(1<<20))
}

// wrap makes an MCP result of what a native extension has answered: unchanged if it is one, otherwise as text, and as
// structured content where that is allowed.
func wrap(result []byte, era mcp.Era) []byte {
	result = bytes.TrimSpace(result)
	if len(result) == 0 || string(result) == "null" {
		return []byte(`{"content":[]}`)
	}
	if isContent(result) {
		return result
	}
	text := string(result)
	if result[0] == '"' {
		_ = json.Unmarshal(result, &text) // the client of the mesh has checked the grammar
	}
	out := append([]byte(`{"content":[{"type":"text","text":`), mcp.Quote(text)...)
	out = append(out, `}]`...)
	if result[0] == '{' || era == mcp.EraModern {
		out = append(append(out, `,"structuredContent":`...), result...)
	}
	return append(out, '}')
}

// isContent reports whether a result is an MCP result: its content is a list of items of MCP's types. If the list is empty, the
// result has nothing else that would be lost.
func isContent(result []byte) bool {
	at, ok := jsonrpc.Member(result, "content")
	if !ok {
		return false
	}
	items, others := 0, false
	err := jsonrpc.Elements(at.In(result), func(item []byte) bool {
		kind, has := jsonrpc.Member(item, "type")
		ok = has && slices.Contains([]string{`"text"`, `"image"`, `"audio"`, `"resource"`, `"resource_link"`}, string(kind.In(item)))
		items++
		return ok
	})
	if err != nil || !ok || items > 0 {
		return err == nil && ok
	}
	_ = jsonrpc.Each(result, func(key, _ []byte) bool {
		others = others || !slices.Contains([]string{"content", "structuredContent", "isError", "_meta"}, string(key))
		return true
	})
	return !others
}
