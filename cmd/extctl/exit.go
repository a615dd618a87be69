package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// The exit codes. They are stable: scripts depend on them.
const (
	exitOK           = 0
	exitNotFound     = 1
	exitUsage        = 2 // also: invalid manifest, arguments that the schema rejects
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

// kinds name the exit codes in JSON errors.
var kinds = map[int]string{
	exitNotFound: "not_found", exitUsage: "usage", exitConfigWrite: "config_write_failed", exitInvalidID: "invalid_id",
	exitExists: "exists", exitIDCollision: "id_collision", exitNeedsYes: "confirmation_missing",
	exitCopyFailed: "copy_failed", exitRuntimeCheck: "runtime_check_failed", exitUnavailable: "unavailable",
	exitTimeout: "timeout", exitToolError: "tool_error", exitNoNATS: "no_nats", exitDenied: "denied",
	exitAmbiguous: "ambiguous", exitOther: "other", exitInterrupted: "interrupted",
}

// failure is an error whose verb knows its exit code. The hint, if any, says what to do about it.
type failure struct {
	code int
	err  error
	hint string
	data any // of the JSON error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func fail(code int, format string, args ...any) *failure {
	return &failure{code: code, err: fmt.Errorf(format, args...)}
}

func usage(format string, args ...any) error {
	return daemon.UsageError{Err: fmt.Errorf(format, args...)}
}

// silentError ends extctl with a code after the verb has printed all there is to say.
type silentError int

func (e silentError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// exitRules map errors to exit codes; the first that matches counts. A failure's own code goes before all.
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
	{isOwn, exitToolError},
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

// isAuth reports that NATS does not take the credentials, or not any longer.
func isAuth(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) ||
		errors.Is(err, nats.ErrAuthRevoked) || errors.Is(err, nats.ErrAccountAuthExpired)
}

// isOwn reports an error that an extension answered itself: the mesh's own carry their kind.
func isOwn(err error) bool {
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

// exit reports err, if there is one, and returns the exit code.
func (a *app) exit(ctx context.Context, err error) int {
	code := exitCode(err)
	switch {
	case err == nil || as[silentError](err):
		return code
	case ctx.Err() != nil && code == exitOther:
		code = exitInterrupted // whatever came to grief, it was because we were told to stop
	}
	if code == exitInterrupted && !a.json {
		return code // whoever interrupted us knows
	}
	if a.json {
		if err := a.printJSON(errorJSON{Error: a.fault(code, err)}); err != nil {
			fmt.Fprintf(a.stderr, "extctl: error: %v\n", err)
		}
		return code
	}
	a.tell(code, err)
	return code
}

// tell says on stderr what failed, and what to do about it.
func (a *app) tell(code int, err error) {
	fmt.Fprintf(a.stderr, "extctl: error: %s\n", cleanLines(err.Error()))
	if h := a.hint(code, err); h != "" {
		fmt.Fprintf(a.stderr, "extctl: hint: %s\n", h)
	}
}

// errorJSON is what a failed command prints with --json.
type errorJSON struct {
	header
	Error faultJSON `json:"error"`
}

// faultJSON is what failed. Code is the JSON-RPC code where a call failed, and the exit code otherwise; Kind tells more
// reliably.
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

// hint says what to do about an error, where that is not plain from the error itself.
func (a *app) hint(code int, err error) string {
	if f, ok := errors.AsType[*failure](err); ok && f.hint != "" {
		return f.hint
	}
	if e, ok := errors.AsType[*rpc.Error](err); ok {
		if e.Code == rpc.CodeExited && e.Details().Status != "" {
			return "`extctl show ID` and `extctl logs ID` have what it wrote to stderr"
		}
	}
	switch {
	case code == exitNoNATS && errors.Is(err, mesh.ErrNoCatalog):
		return "is a registry running, and is --prefix right?"
	case code == exitNoNATS:
		return "start one with `extctl up`, or say where it is with --server, --context or NATS_URL"
	case code == exitDenied && isAuth(err):
		return "NATS takes none of the credentials, or wants some: a user and password in the server's URL, --creds, --nkey, or --tlscert with --tlskey"
	case code == exitUsage && as[daemon.UsageError](err):
		e, _ := errors.AsType[daemon.UsageError](err)
		return cmp.Or(e.Hint, "see "+a.verb+" --help")
	case code == exitDenied:
		return "the NATS user lacks a permission; docs/operations.md lists what each role needs"
	}
	return ""
}
