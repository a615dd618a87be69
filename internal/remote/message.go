package remote

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// message handles a message from the server: the response to pc, or an unsolicited one if pc is nil. answered reports
// whether pc has ended; the error describes what is wrong with the text. Scan refuses batches, which only MCP 2025-03-26 has.
func (c *Conn) message(text []byte, pc *pendingCall, s *session) (answered bool, err error) {
	text = bytes.TrimSpace(bytes.TrimPrefix(text, []byte("\ufeff")))
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\ufffd"))
	}
	env, err := jsonrpc.Scan(text)
	switch {
	case err != nil:
		return false, fmt.Errorf("it is not JSON: %w", err)
	case env.IsRequest():
		c.request(&env, s)
	case env.IsNotification():
		c.notifier.notification(env.MethodName(), env.Params)
	case env.ID == nil && env.Result == nil && env.Error == nil: // {}, with which some servers begin a stream
		return false, errors.New("it is not a JSON-RPC message")
	default:
		return c.response(text, &env, pc)
	}
	return false, nil
}

// request answers a request of the server, so that it does not wait for ever. Only ping succeeds: roots, sampling and
// elicitation cannot be forwarded, since a request does not name the caller that it concerns.
func (c *Conn) request(env *jsonrpc.Envelope, s *session) {
	if !jsonrpc.ValidID(env.ID) {
		return
	}
	method := env.MethodName()
	body := jsonrpc.AppendResult(nil, env.ID, []byte("{}"))
	if method != "ping" {
		body = jsonrpc.AppendError(nil, env.ID, rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "method %.128q is not offered", method))
	}
	c.mu.Lock()
	err := c.noteLocked(s, body, nil)
	c.mu.Unlock()
	if err != nil {
		c.log.Debug("a request of the server could not be answered", "error", err)
	}
}

// response ends the call that env answers. That is pc if the id is pc's or missing, since a server that could not parse a
// request answers without an id. Otherwise it is another call: its answer may arrive on a resumed stream.
func (c *Conn) response(text []byte, env *jsonrpc.Envelope, pc *pendingCall) (answered bool, err error) {
	to := pc
	if id, ok := jsonrpc.ParseID(env.ID); pc == nil || string(env.ID) != "" && string(env.ID) != "null" && !(ok && id == pc.id) {
		c.mu.Lock()
		to = c.pending.withID(id)
		c.mu.Unlock()
		if !ok || to == nil {
			return false, errors.New("it answers another request")
		}
	}
	var r jsonrpc.Reply
	switch {
	case env.Result == nil && env.Error == nil:
		r = jsonrpc.Reply{Err: jsonrpc.Neither()}
	case env.ID == nil: // a Reply needs an id, whose bytes are replaced in place
		text, _ = jsonrpc.SetMember(text, "id", []byte("null"))
		fallthrough
	default:
		if r, err = jsonrpc.ParseReply(text); err != nil {
			return false, err
		}
	}
	c.finish(to, r)
	if to != pc {
		to.abort() // its own request is no longer needed
	}
	return to == pc, nil
}
