package remote

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// message handles one message of the server's, or a batch, which came in answer to f or, without f, by itself.
// answered says that f has ended; the error, what was wrong with the text.
func (c *Conn) message(text []byte, f *flight, s *session) (answered bool, err error) {
	text = bytes.TrimSpace(bytes.TrimPrefix(text, []byte("\ufeff")))
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\ufffd"))
	}
	if len(text) == 0 || text[0] != '[' { // batches are gone since 2025-06-18
		return c.single(text, f, s)
	}
	// One at a time: sixty megabytes of [1,1,1,… would be a gigabyte of slices.
	in := json.NewDecoder(bytes.NewReader(text))
	in.Token()
	for n := 0; in.More(); n++ {
		var m json.RawMessage
		if n == maxBatch {
			return answered, fmt.Errorf("a batch of more than %d messages", maxBatch)
		}
		if err := in.Decode(&m); err != nil {
			return answered, fmt.Errorf("it is not JSON: %w", err)
		}
		a, err2 := c.single(m, f, s)
		answered, err = answered || a, cmp.Or(err, err2)
	}
	return answered, err
}

const maxBatch = 1000

func (c *Conn) single(text []byte, f *flight, s *session) (answered bool, err error) {
	env, err := rpc.Scan(text)
	switch {
	case err != nil:
		return false, fmt.Errorf("it is not JSON: %w", err)
	case env.IsRequest():
		c.request(&env, s)
	case env.IsNotification():
		c.tell.notification(env.MethodName(), env.Params)
	default:
		return c.response(text, &env, f)
	}
	return false, nil
}

// request answers what the server asks for, so that it does not wait for ever: there is nobody here to be asked
// about roots, samples or elicitations, which no client of a mesh could say whom they concern.
func (c *Conn) request(env *rpc.Envelope, s *session) {
	if !rpc.ValidID(env.ID) {
		return
	}
	method := env.MethodName()
	body := rpc.AppendResult(nil, env.ID, []byte("{}"))
	if method != "ping" {
		body = rpc.AppendError(nil, env.ID, rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "method %q is not offered", method))
	}
	c.mu.Lock()
	err := c.noteLocked(s, body, nil)
	c.mu.Unlock()
	if err != nil {
		c.log.Debug("the server's request is not answered", "error", err)
	}
}

// response ends the flight that env answers: f, if there is one and the id says nothing else, since a server that
// could not read a request answers with none; or another one, whose answer comes when a stream is read on.
func (c *Conn) response(text []byte, env *rpc.Envelope, f *flight) (answered bool, err error) {
	to := f
	if id, ok := idOf(env.ID); f == nil || string(env.ID) != "" && string(env.ID) != "null" && !(ok && id == f.id) {
		if to = c.another(id); !ok || to == nil {
			return false, errors.New("it answers another request")
		}
	}
	var r rpc.Reply
	switch {
	case env.Result == nil && env.Error == nil:
		r = rpc.Reply{Err: rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "the extension answered with neither a result nor an error")}
	case env.ID == nil: // a Reply's id is replaced where it stands
		text, _ = rpc.SetMember(text, "id", []byte("null"))
		fallthrough
	default:
		if r, err = rpc.ParseReply(text); err != nil {
			return false, err
		}
	}
	c.finish(to, r)
	if to != f {
		to.abort() // its own request need not bring the answer any more
	}
	return to == f, nil
}

// another finds the flight with this id. Never initialize: its answer is only good together with its headers.
func (c *Conn) another(id uint64) *flight {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.flights.by[id]
	if f == nil || f.abort == nil || f.method == "initialize" {
		return nil
	}
	return f
}

// idOf reads an id of ours. It may come back as a string or with a fraction of zero: some SDKs do that. A string with
// zeros in front is another id.
func idOf(raw []byte) (uint64, bool) {
	s := string(bytes.Trim(raw, `"`))
	if len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	if n, err := strconv.ParseUint(s, 10, 64); err == nil {
		return n, true
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || x < 1 || x >= 1<<53 || x != math.Trunc(x) {
		return 0, false
	}
	return uint64(x), true
}
