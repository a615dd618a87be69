package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/health"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// requestTimeout is the default time limit of commands that send a few requests and exit.
const requestTimeout = 10 * time.Second

// session is the connection of one command to the mesh.
type session struct {
	*app
	nc     *nats.Conn
	prefix wire.Prefix
	denied denials
}

// withMesh connects and runs f. limit is the command's default timeout, 0 for none.
func (a *app) withMesh(cmd *cobra.Command, limit time.Duration, f func(context.Context, *session) error) error {
	ctx, end := context.WithCancelCause(cmd.Context())
	defer end(nil)
	if a.timeout > 0 {
		limit = a.timeout
	}
	if a.timeout < 0 {
		return usage("--timeout %v: want a positive duration", a.timeout)
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	prefix, err := wire.ParsePrefix(a.nats.Prefix)
	if err != nil {
		return daemon.UsageError{Err: err}
	}
	target, err := a.nats.Resolve()
	if err != nil {
		return err
	}
	if cmd.GroupID == "operate" && len(target.NotUsed) > 0 { // a change of another mesh than the intended one
		a.note("extctl: on %s", terminal.Clean(meshOf(target, a.nats.Prefix).String()))
	}
	s := &session{app: a, prefix: prefix}
	s.denied.inbox, s.denied.end = target.InboxPrefix(), end
	var logger *slog.Logger
	if limit == 0 { // the output is endless: log disconnects, so that the user can see why it stopped
		logger = slog.New(slog.NewTextHandler(a.stderr, nil))
	}
	s.nc, err = target.Connect(ctx, daemon.ConnectOptions{
		Name:     "extctl " + cmd.Name(),
		Logger:   logger,
		NoBuffer: true,
		OnDenied: s.denied.add,
	})
	if err != nil {
		return explainConnect(target, err)
	}
	defer s.nc.Close()
	err = f(ctx, s)
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), errInboxDenied):
		return explainInbox(target)
	case errors.Is(err, nats.ErrConnectionClosed):
		return s.lost()
	}
	if err = s.denied.explain(err); errors.Is(err, mesh.ErrNoCatalog) && !as[*failure](err) {
		return s.explainNoCatalog(err)
	}
	return explainTimeout(err, limit)
}

// onMesh is a command's RunE that connects and runs f.
func (a *app) onMesh(limit time.Duration, f func(context.Context, *session, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.withMesh(cmd, limit, func(ctx context.Context, s *session) error { return f(ctx, s, args) })
	}
}

// explainTimeout states the time limit of a command that has reached it.
func explainTimeout(err error, limit time.Duration) error {
	if limit <= 0 || !errors.Is(err, context.DeadlineExceeded) || as[*failure](err) || as[*rpc.Error](err) {
		return err
	}
	text := strings.ReplaceAll(err.Error(), context.DeadlineExceeded.Error(), fmt.Sprintf("not finished within %s", limit))
	return &failure{code: exitTimeout, err: &reworded{text, err}, hint: fmt.Sprintf("--timeout %s gives it longer", 4*limit)}
}

// lost is the error of a connection that NATS will not restore. The client reconnects after every failure except a
// refusal of the user's credentials.
func (s *session) lost() error {
	why := cmp.Or(s.nc.LastError(), nats.ErrConnectionClosed)
	f := fail(exitNoNATS, "NATS closed the connection: %w", why)
	if isAuth(why) {
		f.code = exitDenied
	}
	return f
}

// directGet is the prefix of the subjects that read the catalog. A user without permission for them cannot read it at
// all; permission for the stream's information is optional.
const directGet = "$JS.API.DIRECT.GET."

// catalog loads the catalog, or only some kinds of its documents, and warns if it is stale.
func (s *session) catalog(ctx context.Context, kinds ...string) (*mesh.Catalog, error) {
	c, err := s.load(ctx, mesh.CatalogOptions{}, kinds...)
	if err == nil {
		s.warnIfOld(c.Age())
	}
	return c, err
}

// load is catalog without the warning.
func (s *session) load(ctx context.Context, o mesh.CatalogOptions, kinds ...string) (*mesh.Catalog, error) {
	o.Prefix = string(s.prefix)
	ctx, cancel := s.denied.watch(ctx, directGet)
	defer cancel()
	c, err := mesh.LoadCatalog(ctx, s.nc, o, kinds...)
	if err != nil {
		return nil, s.denied.explain(err)
	}
	return c, nil
}

// extension loads one extension. If it does not exist, the error suggests similar ids.
func (s *session) extension(ctx context.Context, id string) (*mesh.Catalog, mesh.Extension, error) {
	if err := checkID(id); err != nil {
		return nil, mesh.Extension{}, err
	}
	c, err := s.oneExtension(ctx, id)
	if err != nil {
		return nil, mesh.Extension{}, err
	}
	s.warnIfOld(c.Age())
	if e, ok := c.Get(id); ok {
		return c, e, nil
	}
	all, err := s.catalog(ctx, wire.KindState)
	if err != nil {
		return nil, mesh.Extension{}, err
	}
	e, err := extension(all, id)
	return all, e, err
}

// warnIfOld warns if no registry maintains the catalog of this age.
func (s *session) warnIfOld(age time.Duration) {
	switch {
	case s.json || age <= health.StaleAfter:
	case !s.nc.IsConnected():
		fmt.Fprintf(s.stderr, "extctl: warning: the connection to NATS is down; the catalog %s and may be out of date\n", health.Age(age))
	default:
		fmt.Fprintf(s.stderr, "extctl: warning: no registry is leading; the catalog %s and may be out of date\n", health.Age(age))
	}
}

// follow keeps a catalog up to date while f runs. f's context ends when no further update can arrive: NATS denies
// access to the catalog, or closes the connection.
func (s *session) follow(ctx context.Context, f func(context.Context, *mesh.Catalog) error) error {
	ctx, cancel := s.denied.watch(ctx, directGet)
	defer cancel()
	c := mesh.NewCatalog(s.nc, mesh.CatalogOptions{Prefix: string(s.prefix)})
	ctx, end := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { end(c.Run(ctx)) }) // ends with ctx
	err := f(ctx, c)
	if by := endedBy(ctx); err != nil && by != nil {
		err = by // the reason, instead of f's "context canceled"
	}
	end(nil)
	wg.Wait()
	return err
}

// extension finds an extension by its id. The error suggests similar ids.
func extension(c *mesh.Catalog, id string) (mesh.Extension, error) {
	if e, ok := c.Get(id); ok {
		return e, nil
	}
	if err := checkID(id); err != nil {
		return mesh.Extension{}, err
	}
	f := fail(exitNotFound, "no extension has the id %q", id)
	if !f.suggest(id, ids(c)) {
		f.hint = "`extctl list` lists the extensions; `extctl hosts` shows what bridges could not start and why"
	}
	return mesh.Extension{}, f
}

// checkID checks the id of an extension or a member on the command line.
func checkID(id string) error {
	if err := wire.CheckID(id, true); err != nil {
		return &failure{code: exitInvalidID, err: err}
	}
	return nil
}

func ids(c *mesh.Catalog) []string {
	var out []string
	for _, e := range c.All() {
		out = append(out, e.ID)
	}
	return out
}

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
		return nil, &reworded{text, err} // explainTimeout adds a hint if the command has a limit
	case errors.Is(err, nats.ErrReconnectBufExceeded):
		return nil, fail(exitNoNATS, "%s: request %s: the connection to NATS is down", peer, method).with("it is made again as soon as NATS is back", nil)
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

// denials are the permission violations of a connection. NATS reports them separately from the request that caused
// one, so without this the request would wait for its timeout.
type denials struct {
	mu      sync.Mutex
	first   error
	waiting []*waiter

	inbox string                  // the prefix of the connection's reply subjects
	end   context.CancelCauseFunc // of the command, if it may not receive replies; may be nil
}

type waiter struct {
	subject string
	cancel  context.CancelCauseFunc
}

// add records a violation; its text has the subject in quotes.
func (d *denials) add(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if subject, ok := natsconn.DeniedSubscription(err); ok && d.end != nil && strings.HasPrefix(subject, d.inbox+".") {
		d.end(errInboxDenied) // no request can have a reply
	}
	if d.first == nil {
		d.first = err
	}
	for _, w := range d.waiting {
		if strings.Contains(err.Error(), `"`+w.subject) {
			w.cancel(err)
		}
	}
}

// explain returns the first violation if there is one and err only means that no reply arrived, otherwise err.
func (d *denials) explain(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.first != nil && slices.ContainsFunc(noReplyErrors, func(s error) bool { return errors.Is(err, s) }) {
		return d.first
	}
	return err
}

// noReplyErrors are the errors that a missing reply results in. Those of a call are not among them: the denial may be that of
// an earlier request, and the tool may have run.
var noReplyErrors = []error{
	context.Canceled, context.DeadlineExceeded, nats.ErrTimeout, mesh.ErrNoCatalog,
}

// endedBy returns the reason if NATS ended ctx: it denied a subject or closed the connection. It returns nil for a
// timeout, an interrupt, and while ctx is active.
func endedBy(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, nats.ErrPermissionViolation) || errors.Is(err, nats.ErrConnectionClosed) {
		return err
	}
	return nil
}

// watch returns ctx for requests on subjects that begin with subject; it ends when NATS denies one of them.
func (d *denials) watch(ctx context.Context, subject string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	w := &waiter{subject, cancel}
	d.waiting = append(d.waiting, w)
	return ctx, func() {
		cancel(nil)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.waiting = slices.DeleteFunc(d.waiting, func(v *waiter) bool { return v == w })
	}
}
