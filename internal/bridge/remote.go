package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/gate"
	state "github.com/extmesh/extmesh/internal/instance"
	"github.com/extmesh/extmesh/internal/remote"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// runRemote runs an extension that is reached over HTTP: it performs the handshake and serves until the extension is gone
// or ctx ends. There is no process to watch, so health checks detect the end (watchHealth).
func (s *instance) runRemote(ctx context.Context, ready func()) error {
	connCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer s.history.runEnded(nil, nil)
	f := s.newForwarder()
	r := &run{inst: s, f: f, start: start{release: func() {}}, end: stop, cut: make(chan struct{}), ready: func(*handshake) { ready() }}
	f.remote = true
	w, err := present(s)
	if err != nil {
		return err
	}
	t := w.transport
	f.credentials = &credentials{
		show: func(reason string) { s.apply(state.Note, s.workload.clean(reason, maxReason)) },
		renew: func() {
			if s.workload.files == nil {
				return
			}
			if now, err := s.workload.files.present(); err == nil && now.gated == "" && (now.transport.URL != t.URL || !maps.Equal(now.transport.Headers, t.Headers)) {
				stop(errCredentials)
			}
		},
	}
	conn := remote.New(remote.Config{
		URL: t.URL, Headers: t.Headers, Dialect: t.Dialect,
		Allow:          s.workload.httpAllow,
		MaxResult:      int64(s.workload.limits.maxResult),
		OnNotification: func(method string, params []byte) { r.handleNotification(method, params) },
		OnReopened: func(result json.RawMessage) {
			f.reopened.Store(&result)
			f.messages.forgetLevel()
		},
		OnGap:  func() { s.updates.resume(f.conn) }, // the server may have been replaced
		Logger: s.log,
	})
	f.conn = conn
	// The session outlives connCtx until the calls in flight are answered, for at most the drain limit: a server whose health
	// checks failed must not stay away as long as one of them.
	sessionCtx, closeSession := context.WithCancelCause(context.WithoutCancel(ctx))
	defer context.AfterFunc(connCtx, func() {
		drainTimer := time.AfterFunc(s.workload.limits.drain, func() { closeSession(context.Cause(connCtx)) })
		context.AfterFunc(sessionCtx, func() { drainTimer.Stop() })
	})()
	var wg sync.WaitGroup
	wg.Go(func() { // owned here; ends with sessionCtx, or when the session fails
		err := conn.Run(sessionCtx)
		time.AfterFunc(answerGrace, func() { close(r.cut) })
		stop(err)
	})
	defer wg.Wait()
	defer closeSession(nil)
	err = r.handshakeAndServe(connCtx)
	return cmp.Or(err, ownCause(connCtx, ctx))
}

var errCredentials = errors.New("the server refuses the credentials, and the files with them have changed")

// remoteDrain is the maximum time a stop waits for calls over HTTP, which no process exit would end.
const remoteDrain = 2500 * time.Millisecond

// prepareRemote sets the limits of an extension that is reached over HTTP. After it has failed it is retried more often
// than a child: a retry costs only a request, and its server is restarted by others.
func (w *workload) prepareRemote(environ []string, m *manifest.Manifest) {
	w.limits.drain = min(w.limits.drain+w.grace, remoteDrain)
	if retry := w.policy.FailedRetry; retry > 0 {
		w.policy.FailedRetry = min(retry, w.policy.MaxBackoff)
	}
	values, names := map[string]string{}, gate.Declared(m)
	for name, value := range w.transport.Headers {
		// In "Bearer token" the token is the secret, so both are redacted; the redactor treats each line as a value.
		values[name] = value + "\n" + strings.Join(strings.Fields(value), "\n")
		names = append(names, name)
	}
	declared, inURL := gate.NewRedactor(environ, names, values), remote.Secrets(w.transport.URL, w.transport.Headers)
	w.redact = func(text string) string { return inURL.Redact(declared.Redact(text)) }
}
