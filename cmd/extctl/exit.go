package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/nearest"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// The exit codes. They are stable: scripts depend on them.
const (
	exitOK           = 0
	exitNotFound     = 1
	exitUsage        = 2 // also: invalid manifest, arguments that do not match the schema
	exitConfigWrite  = 3
	exitInvalidID    = 4
	exitExists       = 5
	exitIDCollision  = 6
	exitNeedsYes     = 7
	exitCopyFailed   = 8
	exitRuntimeCheck = 9
	exitUnavailable  = 10 // lost, breaker open, overloaded, draining, exited
	exitTimeout      = 11
	exitToolError    = 12
	exitNoNATS       = 13 // or no catalog
	exitDenied       = 14
	exitAmbiguous    = 15
	exitOther        = 16
	exitInterrupted  = 130
)

// kinds are the names of the exit codes in JSON errors.
var kinds = map[int]string{
	exitNotFound: "not_found", exitUsage: "usage", exitConfigWrite: "config_write_failed", exitInvalidID: "invalid_id",
	exitExists: "exists", exitIDCollision: "id_collision", exitNeedsYes: "confirmation_missing",
	exitCopyFailed: "copy_failed", exitRuntimeCheck: "runtime_check_failed", exitUnavailable: "unavailable",
	exitTimeout: "timeout", exitToolError: "tool_error", exitNoNATS: "no_nats", exitDenied: "denied",
	exitAmbiguous: "ambiguous", exitOther: "other", exitInterrupted: "interrupted",
}

// failure is an error with its exit code. The hint, if any, is what the user can do.
type failure struct {
	code int
	err  error
	hint string
	data any // the JSON error's data member
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func fail(code int, format string, args ...any) *failure {
	return &failure{code: code, err: fmt.Errorf(format, args...)}
}

// with sets the hint and the data, which may be nil, and returns the failure.
func (f *failure) with(hint string, data any) *failure {
	f.hint, f.data = hint, data
	return f
}

// suggest sets the hint to the known words that are similar to a word, and reports whether there is one.
func (f *failure) suggest(word string, known []string) bool {
	near := nearest.Words(word, known)
	if len(near) > 0 {
		f.hint, f.data = "did you mean "+terminal.Clean(words.Or(near))+"?", map[string]any{"nearest": near}
	}
	return len(near) > 0
}

func usage(format string, args ...any) error {
	return daemon.UsageError{Err: fmt.Errorf(format, args...)}
}

// silentError sets the exit code of a command that has already printed everything.
type silentError int

func (e silentError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// exitRules map errors to exit codes; the first match applies. A failure's own code takes precedence.
var exitRules = []struct {
	match func(error) bool
	code  int
}{
	{as[daemon.UsageError], exitUsage},
	{as[*mesh.NotFoundError], exitNotFound},
	{as[*mesh.AmbiguousError], exitAmbiguous},
	{is(nats.ErrPermissionViolation), exitDenied},
	{isAuth, exitDenied},
	{as[*daemon.ConnectError], exitNoNATS},
	{is(mesh.ErrNoCatalog), exitNoNATS},
	{is(nats.ErrConnectionClosed), exitNoNATS},
	{is(nats.ErrReconnectBufExceeded), exitNoNATS},
	{isToolError, exitToolError},
	{is(rpc.CodeInvalidParams), exitUsage},
	{is(rpc.CodeMethodNotFound), exitNotFound},
	{is(rpc.CodeExited), exitUnavailable},
	{is(rpc.CodeUnavailable), exitUnavailable},
	{is(rpc.CodeBreakerOpen), exitUnavailable},
	{is(rpc.CodeOverloaded), exitUnavailable},
	{is(rpc.CodeTimeout), exitTimeout},
	{is(context.DeadlineExceeded), exitTimeout},
	{is(nats.ErrTimeout), exitTimeout},
	{is(context.Canceled), exitInterrupted},
	{is(rpc.CodeCancelled), exitInterrupted},
}

func as[E error](err error) bool { _, ok := errors.AsType[E](err); return ok }

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

// isAuth reports that NATS refused the credentials, or that they have expired or been revoked.
func isAuth(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) ||
		errors.Is(err, nats.ErrAuthRevoked) || errors.Is(err, nats.ErrAccountAuthExpired)
}

// isToolError reports an error that the extension itself returned. Errors of the mesh carry a kind.
func isToolError(err error) bool {
	e, ok := errors.AsType[*rpc.Error](err)
	return ok && e.Details().Kind == ""
}

func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if s, ok := errors.AsType[silentError](err); ok {
		return int(s)
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f.code
	}
	for _, r := range exitRules {
		if r.match(err) {
			return r.code
		}
	}
	return exitOther
}

// exit prints err, if any, and returns the exit code.
func (a *app) exit(ctx context.Context, err error) int {
	code := exitCode(err)
	switch {
	case err == nil || as[silentError](err):
		return code
	case ctx.Err() != nil && code == exitOther:
		code = exitInterrupted // the failure is a consequence of the interrupt
	case ctx.Err() == nil && code == exitInterrupted:
		code = exitOther // somebody else cancelled the call
	}
	if code == exitInterrupted && !a.json {
		return code // the user pressed Ctrl-C and needs no message
	}
	if a.json {
		if err := a.printJSON(errorJSON{Error: a.fault(code, err)}); err != nil {
			fmt.Fprintf(a.stderr, "extctl: error: %v\n", err)
		}
		return code
	}
	a.printError(code, err)
	return code
}

// printError prints an error and its hint on stderr.
func (a *app) printError(code int, err error) {
	fmt.Fprintf(a.stderr, "extctl: error: %s\n", terminal.CleanLines(err.Error()))
	if h := a.hint(code, err); h != "" {
		fmt.Fprintf(a.stderr, "extctl: hint: %s\n", terminal.CleanLines(h))
	}
}

// errorJSON is what a failed command prints with --json.
type errorJSON struct {
	header
	Error faultJSON `json:"error"`
}

// faultJSON is an error in JSON. Code is the JSON-RPC code if a call failed, otherwise the exit code; programs should
// compare Kind.
type faultJSON struct {
	Code    int    `json:"code"`
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
	Hint    string `json:"hint,omitempty"`
}

func (a *app) fault(code int, err error) faultJSON {
	out := faultJSON{Code: code, Kind: kinds[code], Message: err.Error(), Hint: a.hint(code, err)}
	if errors.Is(err, mesh.ErrNoCatalog) {
		out.Kind = "no_catalog"
	}
	if e, ok := errors.AsType[*rpc.Error](err); ok {
		out.Code = int(e.Code)
		if k := e.Details().Kind; k != "" {
			out.Kind = k
		}
		if len(e.Data) > 0 {
			out.Data = json.RawMessage(e.Data)
		}
	}
	if e, ok := errors.AsType[*mesh.NotFoundError](err); ok && len(e.Nearest) > 0 {
		out.Data = map[string]any{"nearest": e.Nearest}
	}
	if e, ok := errors.AsType[*mesh.AmbiguousError](err); ok {
		out.Data = map[string]any{"candidates": e.Candidates}
	}
	if e, ok := errors.AsType[*daemon.ConnectError](err); ok {
		out.Data = map[string]any{"server": e.Addr, "from": e.Source}
	}
	if f, ok := errors.AsType[*failure](err); ok && f.data != nil {
		out.Data = f.data
	}
	return out
}

// hint is what the user can do about an error, if the error does not make that obvious.
func (a *app) hint(code int, err error) string {
	if f, ok := errors.AsType[*failure](err); ok && f.hint != "" {
		return f.hint
	}
	if e, ok := errors.AsType[*rpc.Error](err); ok {
		if e.Code == rpc.CodeExited && e.Details().Status != "" {
			return "`extctl show ID` and `extctl logs ID` have what it wrote to stderr"
		}
	}
	if e, ok := errors.AsType[*mesh.NotFoundError](err); ok && len(e.Nearest) == 0 {
		return "`extctl tools --search WORD` finds tools; `extctl status` shows what does not work, and why"
	}
	switch {
	case code == exitNoNATS && errors.Is(err, mesh.ErrNoCatalog):
		return "is a registry running, and is --prefix right?"
	case code == exitNoNATS:
		return hintNoServer
	case code == exitDenied && isAuth(err):
		return hintUpPassword + hintCredentials
	case code == exitUsage && as[daemon.UsageError](err):
		e, _ := errors.AsType[daemon.UsageError](err)
		return cmp.Or(e.Hint, "see "+a.verb+" --help")
	case code == exitDenied:
		return "the NATS user lacks a permission; docs/operations.md lists what each role needs"
	}
	return ""
}
