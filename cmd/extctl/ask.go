package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// ask makes one JSON-RPC request on a subject; who names the other side in errors.
func (s *session) ask(ctx context.Context, subject, who, method string, params any) (json.RawMessage, error) {
	var raw json.RawMessage
	if params != nil {
		var err error
		if raw, err = json.Marshal(params); err != nil {
			return nil, err
		}
	}
	ctx, cancel := s.denied.watch(ctx, subject+`"`)
	defer cancel()
	m, err := s.nc.RequestWithContext(ctx, subject, rpc.AppendRequest(nil, []byte("1"), method, raw))
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, fail(exitUnavailable, "%s does not answer: nobody listens on %s", who, subject)
	case err != nil:
		return nil, fmt.Errorf("asking %s: %w", who, cmp.Or(endedBy(ctx), err))
	}
	env, err := rpc.Scan(m.Data)
	if err != nil || !env.IsResponse() {
		return nil, fail(exitOther, "%s answered something that is no JSON-RPC response", who)
	}
	if len(env.Error) > 0 && string(env.Error) != "null" {
		e := new(rpc.Error)
		if err := json.Unmarshal(env.Error, e); err != nil {
			return nil, fail(exitOther, "%s answered an error of odd shape", who)
		}
		return nil, e
	}
	return env.Result, nil
}
