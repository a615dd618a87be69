package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/remote"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// remoteLife is the life of an extension behind a URL: shake hands, serve until it is gone or ctx ends. There is
// no process to watch; that it is gone is found out by asking (watchHealth).
func (s *slot) remoteLife(ctx context.Context, ready func()) error {
	talk, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer s.past.end(nil, nil)
	f := s.forwarder()
	f.remote = true
	f.credentials = &credentials{show: func(reason string) { s.mesh.SetReason(heartbeat.Ready, s.unit.clean(reason, maxReason)) }}
	conn := remote.New(remote.Config{
		URL: s.unit.transport.URL, Headers: s.unit.transport.Headers, Dialect: s.unit.transport.Dialect,
		Allow:          s.unit.httpAllow,
		MaxResult:      int64(s.unit.limits.maxResult),
		OnNotification: func(method string, params []byte) { s.notification(f, method, params) },
		OnReopened:     func(result json.RawMessage) { f.introduced.Store(&result) },
		Logger:         s.log,
	})
	f.conn = conn
	// The conversation outlives ctx by what it takes to answer what is in flight.
	cctx, hangUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() {
		patience := time.AfterFunc(s.unit.limits.drain, func() { hangUp(context.Cause(ctx)) })
		context.AfterFunc(cctx, func() { patience.Stop() })
	})()
	var wg sync.WaitGroup
	wg.Go(func() { stop(conn.Run(cctx)) }) // owned here; ends with cctx, or when the session cannot go on
	defer wg.Wait()
	defer hangUp(nil)
	err := s.converse(talk, f, stop, func(*handshake) { ready() })
	return cmp.Or(err, ownCause(talk, ctx))
}

// remoteDrain is how long a stop waits for calls over HTTP: there is no process whose end takes the rest.
const remoteDrain = 2500 * time.Millisecond

// prepareRemote makes the limits of what is reached over HTTP. Out of failed it is tried more often than a child
// is: that costs a request, and somebody else decides when it comes back.
func (u *unit) prepareRemote(environ []string, m *manifest.Manifest) {
	u.limits.drain = min(u.limits.drain+u.grace, remoteDrain)
	if retry := u.policy.FailedRetry; retry > 0 {
		u.policy.FailedRetry = min(retry, u.policy.MaxBackoff)
	}
	values, names := map[string]string{}, gate.Declared(m)
	for name, value := range u.transport.Headers {
		// Of "Bearer token" the token is the secret; a redactor takes each line for a value of its own.
		values[name] = value + "\n" + strings.Join(strings.Fields(value), "\n")
		names = append(names, name)
	}
	u.redact = gate.NewRedactor(environ, names, values).Redact
}
