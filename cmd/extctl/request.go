package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// request sends one JSON-RPC request to a subject. peer names the receiver in errors.
func (s *session) request(ctx context.Context, subject, peer, method string, params any) (json.RawMessage, error) {
	var raw json.RawMessage
	if params != nil {
		var err error
		if raw, err = json.Marshal(params); err != nil {
			return nil, err
		}
	}
	ctx, cancel := s.denied.watch(ctx, subject+`"`)
	defer cancel()
	began := time.Now()
	m, err := natsconn.Request(ctx, s.nc, subject, jsonrpc.AppendRequest(nil, []byte("1"), method, raw))
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, fail(exitUnavailable, "%s is not available: no subscriber on %s", peer, subject)
	case errors.Is(err, context.DeadlineExceeded) && endedBy(ctx) == nil:
		text := fmt.Sprintf("%s did not answer the request %s within %s", peer, method, roundTime(time.Since(began)))
		return nil, &failure{code: exitTimeout, err: &reworded{text, err}, hint: "--timeout DURATION gives it longer"}
	case err != nil:
		return nil, fmt.Errorf("%s: request %s: %w", peer, method, cmp.Or(endedBy(ctx), err))
	}
	env, err := jsonrpc.Scan(m.Data)
	if err != nil || !env.IsResponse() {
		return nil, fail(exitOther, "%s returned something that is not a JSON-RPC response", peer)
	}
	if len(env.Error) > 0 && string(env.Error) != "null" {
		e := new(rpc.Error)
		if err := json.Unmarshal(env.Error, e); err != nil {
			return nil, fail(exitOther, "%s returned a malformed error", peer)
		}
		return nil, e
	}
	return env.Result, nil
}
