package wire

import (
	"context"
	"errors"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// callError is the error of a call that a Client made; errors.As finds the *rpc.Error in it. It is marked because
// handlers pass errors on that they get: this one's kind and ran speak of their call, and not of the one that they
// answer, which its caller would make again on a ran "no", though it has run.
type callError struct{ err error }

func (e *callError) Error() string { return e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

// OfCall marks a Client's error.
func OfCall(err error) error {
	if _, ok := errors.AsType[*rpc.Error](err); ok {
		return &callError{err}
	}
	return err
}

// OfHandler is a handler's error as its caller gets it. One that a Client returned to the handler becomes the
// extension's own, with all of its text, and so does a Go error without a code, also if it wraps a timeout of something that the
// handler uses. What the handler made itself stays, the mesh's kinds, too: a tool may refuse
// arguments with rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, …).
func OfHandler(ctx context.Context, err error) error {
	if _, typed := errors.AsType[*rpc.Error](err); err != nil && !typed && ctx.Err() == nil {
		return &rpc.Error{Code: rpc.CodeInternal, Message: err.Error()}
	}
	marked, ok := errors.AsType[*callError](err)
	if !ok || rpc.AsError(err) != rpc.AsError(marked) { // the handler's own stands before it
		return err
	}
	if end := ctx.Err(); end != nil { // of the handler's call, and so of those that it made
		return rpc.Errorf(rpc.AsError(end).Code, rpc.RanMaybe, "%s", err.Error())
	}
	return &rpc.Error{Code: rpc.CodeInternal, Message: err.Error()}
}
