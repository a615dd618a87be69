package jsonrpc

import (
	"context"
	"errors"
	"strconv"
	"unicode/utf8"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// readLoop handles lines until the stream ends.
func (c *Conn) readLoop(ctx context.Context) error {
	lines := NewLineReader(c.r, c.opt.MaxLine)
	lines.count, lines.reserve = &c.received, c.opt.Reserve
	defer lines.dropBuffer()
	for {
		line, err := lines.Next()
		if err == nil {
			c.receive(ctx, line, lines)
			continue
		}
		long, ok := errors.AsType[*LongLineError](err)
		if !ok {
			return err
		}
		c.long.Add(1)
		c.tooLong(long)
	}
}

// receive handles one line, which is in the buffer of lines.
func (c *Conn) receive(ctx context.Context, line []byte, lines *LineReader) {
	if space(line, 0) == len(line) {
		return
	}
	cut := lines.cut
	if !utf8.Valid(line) {
		line, lines = toValidUTF8(line), nil
	}
	env, err := Scan(line)
	switch {
	case err != nil && cut: // the process ended while it wrote: the end of the stream fails the call, with a better reason
		c.noiseLine(line, errors.New("the output ended in the middle of a line"))
	case err != nil:
		c.broken(line, err)
	case env.foreign && !env.versioned: // {"level":"error","error":"…"}
		c.noiseLine(line, errNoMessage)
	case env.IsResponse() || env.Method == nil && env.ID != nil && env.versioned:
		c.answer(line, &env, lines)
	case env.IsRequest():
		c.request(ctx, &env)
	case env.IsNotification():
		c.notification(ctx, &env)
	default:
		c.noiseLine(line, errNoMessage)
	}
}

var errNoMessage = errors.New("a JSON object, but not a JSON-RPC message")

func (c *Conn) answer(line []byte, env *Envelope, lines *LineReader) {
	x := c.claim(env.ID)
	if x == nil {
		c.unknown.Add(1)
		if isError(env) && string(env.ID) == "null" {
			c.noiseLine(line, errors.New("an error without a request's id"))
		}
		return
	}
	if env.Result == nil && !isError(env) {
		x.Sink.Deliver(x, Reply{Err: Neither()})
		return
	}
	normalise(env)
	x.Sink.Deliver(x, Reply{line: line, env: *env, from: lines})
}

// Neither returns the error for a response without a result and without an error, or with the error null.
func Neither() *rpc.Error {
	return rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "the extension answered with neither a result nor an error")
}

// claim removes the exchange with an answer's id, and returns nil if there is none.
func (c *Conn) claim(id []byte) *Exchange {
	n, ok := ParseID(id)
	if !ok {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.remove(n)
}

// ParseID parses the id of an answer to a request whose id was a number. Some SDKs return it as a string or with a fraction
// of zero. A string with leading zeros is a different id.
func ParseID(id []byte) (uint64, bool) {
	if len(id) > 2 && id[0] == '"' {
		id = id[1 : len(id)-1]
	}
	if len(id) == 0 || len(id) > 24 {
		return 0, false
	}
	if len(id) > 1 && id[0] == '0' && id[1] != '.' && id[1] != 'e' && id[1] != 'E' { // "007" is a string of its own, not 7
		return 0, false
	}
	n := uint64(0)
	for i, c := range id {
		if c < '0' || c > '9' {
			f, err := strconv.ParseFloat(string(id), 64)
			if err != nil || i == 0 || f < 0 || f >= 1<<53 || f != float64(uint64(f)) {
				return 0, false
			}
			return uint64(f), true
		}
		if n > (1<<64-1)/10-1 {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, true
}

// broken handles a line that is not valid JSON: noise, or an invalid answer. If its id can be found, the call fails
// immediately instead of timing out.
func (c *Conn) broken(line []byte, why error) {
	ends := lineEnds{head: line[:min(len(line), endSize)]} // the end of a broken line may be that of an inner object
	if x := c.claim(ends.id()); x != nil {
		x.Sink.Deliver(x, Reply{Err: rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "the extension's answer is not valid JSON: %v", why)})
	}
	c.noiseLine(line, why)
}

func (c *Conn) noiseLine(line []byte, why error) {
	c.noise.Add(1)
	if c.opt.OnNoise != nil {
		c.opt.OnNoise(line, why)
	}
}

func (c *Conn) tooLong(e *LongLineError) {
	switch x := c.claim(e.ID); {
	case x != nil && e.NoMemory:
		x.Sink.Deliver(x, Reply{Err: rpc.NewError(rpc.CodeOverloaded, rpc.Details{Size: e.Size},
			"the extension's answer of %d bytes was discarded: the calls in progress use all the memory that is allowed for them", e.Size)})
		return
	case x != nil:
		x.Sink.Deliver(x, Reply{Err: rpc.NewError(rpc.CodeTooLarge, rpc.Details{Size: e.Size, Limit: e.Limit},
			"the extension's answer is %d bytes, over the limit of %d", e.Size, e.Limit)})
		return
	}
	if c.opt.OnNoise != nil {
		c.opt.OnNoise(nil, e)
	}
}
