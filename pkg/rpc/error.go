package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Code is a JSON-RPC error code. It is itself an error, so that errors.Is(err, rpc.CodeTimeout) compares the code of
// the *Error that err wraps, whether it was made here or received.
type Code int

// The codes of JSON-RPC 2.0, then the mesh's own (docs/protocol.md, "Errors").
const (
	CodeParse          Code = -32700
	CodeInvalidRequest Code = -32600
	CodeMethodNotFound Code = -32601
	CodeInvalidParams  Code = -32602
	CodeInternal       Code = -32603

	CodeExited      Code = -32000 // the extension ended with the call in flight
	CodeTimeout     Code = -32001
	CodeUnavailable Code = -32003 // no instance takes calls
	CodeBreakerOpen Code = -32004
	CodeOverloaded  Code = -32005
	CodeTooLarge    Code = -32006
	CodeCancelled   Code = -32007
)

var kinds = map[Code]string{
	CodeParse: "parse", CodeInvalidRequest: "invalid_request", CodeMethodNotFound: "method_not_found",
	CodeInvalidParams: "invalid_params", CodeInternal: "internal", CodeExited: "extension_exited",
	CodeTimeout: "timeout", CodeUnavailable: "unavailable", CodeBreakerOpen: "breaker_open",
	CodeOverloaded: "overloaded", CodeTooLarge: "too_large", CodeCancelled: "cancelled",
}

// Kind is the code's name, as in an error's data.kind, or "" for a code that the mesh does not define.
func (c Code) Kind() string { return kinds[c] }

// Error makes a Code usable as the target of errors.Is.
func (c Code) Error() string {
	if k := c.Kind(); k != "" {
		return k
	}
	return fmt.Sprintf("JSON-RPC error %d", int(c))
}

// Ran is whether the tool may have run although the call failed.
type Ran string

// The values of data.ran. A call that failed with RanNo can be retried safely.
const (
	RanNo    Ran = "no"
	RanMaybe Ran = "maybe"
)

// Error is a JSON-RPC error object. Data is unchanged raw JSON; for errors made by the mesh it is an object with at
// least kind and ran.
type Error struct {
	Code    Code            `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Is reports whether target is e's Code, or an *Error with the same code.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case Code:
		return e.Code == t
	case *Error:
		return e.Code == t.Code
	}
	return false
}

// Details are the members of an error's data that the mesh itself writes and reads. Which of them are set
// depends on the kind (docs/protocol.md, "Errors").
type Details struct {
	Kind         string `json:"kind"`
	Ran          Ran    `json:"ran"`
	State        string `json:"state,omitempty"`
	Reason       string `json:"reason,omitempty"`
	Status       string `json:"status,omitempty"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`
	Limit        int64  `json:"limit,omitempty"`
	Size         int64  `json:"size,omitempty"`
}

// Errorf makes an error of the mesh: data is {kind, ran} with the code's kind.
func Errorf(code Code, ran Ran, format string, args ...any) *Error {
	return NewError(code, Details{Ran: ran}, format, args...)
}

// NewError makes an error of the mesh with more details; d.Kind is filled in from the code, d.Ran defaults
// to RanMaybe.
func NewError(code Code, d Details, format string, args ...any) *Error {
	d.Kind = code.Kind()
	if d.Ran == "" {
		d.Ran = RanMaybe
	}
	data, err := json.Marshal(d)
	if err != nil { // strings and numbers always encode
		panic(err)
	}
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Data: data}
}

// Details decodes e's data. It returns the zero Details for an extension's own error: if that has a kind, it is another one
// than the code's.
func (e *Error) Details() Details {
	var d Details
	if len(e.Data) > 0 && e.Data[0] == '{' {
		if json.Unmarshal(e.Data, &d) != nil || d.Kind != e.Code.Kind() {
			return Details{}
		}
	}
	return d
}

// AsError returns the *Error in err's chain. Any other err is converted, with ran "maybe": the error of a context to
// CodeCancelled or CodeTimeout, and any other error to CodeInternal with its message. A nil err gives a nil *Error.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	code := CodeInternal
	switch {
	case errors.Is(err, context.Canceled):
		code = CodeCancelled
	case errors.Is(err, context.DeadlineExceeded):
		code = CodeTimeout
	}
	return Errorf(code, RanMaybe, "%s", err.Error())
}
