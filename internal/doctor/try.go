package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/remote"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// Options are what Try depends on.
type Options struct {
	Prefix   wire.Prefix
	Timeout  time.Duration                             // of each test; 0: those of the settings and manifests
	Connect  func(context.Context) (*nats.Conn, error) // for services on NATS; called at most once
	Progress func(line string)                         // gets a line when a test begins or ends; nil: none
}

// Try tests every part, as many in parallel as the configuration allows, and adds to Results.
func (d *Doctor) Try(ctx context.Context, o Options) {
	defer bridge.Watchdog(slog.New(slog.DiscardHandler))()
	var nc *nats.Conn
	connect := sync.OnceValues(func() (_ *nats.Conn, err error) {
		nc, err = o.Connect(ctx)
		return nc, err
	})
	defer func() { nc.Close() }() // if no test has connected, it is nil, and Close does nothing
	t := &tryout{Doctor: d, Options: o, starts: make(chan struct{}, bridge.MaxStarts()), connect: connect}
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(d.settings.Doctor.Parallel, len(d.parts)) {
		wg.Go(func() { // ends when no part is left, or with ctx; waited for below
			for i := int(next.Add(1)) - 1; i < len(d.parts) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				t.try(ctx, i)
			}
		})
	}
	wg.Wait()
}

// tryout is the state of the tests.
type tryout struct {
	*Doctor
	Options
	connect func() (*nats.Conn, error) // connects on the first call
	starts  chan struct{}              // has an element for each stdio extension being tested, at most as many as a bridge starts at once

	mu      sync.Mutex
	running []string // ids of the parts being tested
	done    int
}

// try tests part i, unless the static checks have failed or it is gated.
func (t *tryout) try(ctx context.Context, i int) {
	p, r := t.parts[i], &t.Results[i]
	if r.Outcome != OK {
		t.count(r.ID, true)
		return
	}
	if p.Own.Transport.Type == manifest.Stdio {
		t.starts <- struct{}{}
		defer func() { <-t.starts }()
	}
	t.count(r.ID, false)
	defer t.count(r.ID, true)
	limit := t.limit(p)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it took longer than %s", limit))
	defer cancel()
	began := time.Now()
	var err error
	switch p.Own.Transport.Type {
	case manifest.Stdio:
		err = t.stdio(ctx, p, r)
	case manifest.NATS:
		r.Detail, err = t.awaitHeartbeat(ctx, r.ID, limit)
	case manifest.HTTP:
		r.Detail, err = "reachable", t.probe(ctx, p)
	}
	r.ElapsedMS = float64(time.Since(began).Microseconds()) / 1000
	if err != nil {
		r.Outcome, r.Error, r.Detail = Fail, err.Error(), ""
	}
}

// limit is the time limit of one test. A stdio extension gets at least the time that a bridge gives its first start.
func (t *tryout) limit(p Part) time.Duration {
	s := t.settings
	switch {
	case t.Timeout > 0:
		return t.Timeout
	case p.Own.Transport.Type == manifest.NATS:
		return s.Doctor.HeartbeatTimeout
	case p.Own.Transport.Type == manifest.Stdio:
		return max(s.Doctor.Timeout, s.StartLimit(p.Own.Plugin.ID, p.Own.Transport).Max)
	}
	return s.Doctor.Timeout
}

// stdio starts an extension, makes the handshake, lists its tools and stops it.
func (t *tryout) stdio(ctx context.Context, p Part, r *Result) error {
	trial := t.local.Examine(ctx, p.Candidate, p.Own)
	r.Stderr = trial.Stderr
	if trial.Exit != nil {
		r.ExitStatus = trial.Exit.Status()
	}
	t.mu.Lock()
	for _, problem := range trial.Problems {
		t.warn(p, "", "%s", problem.Message)
	}
	t.mu.Unlock()
	if trial.Err != nil {
		return trial.Err
	}
	r.Detail = words.Plural(len(trial.Tools), "tool")
	if len(trial.Hooks) > 0 {
		r.Detail += ", " + words.Plural(len(trial.Hooks), "hook")
	}
	r.Detail += ", dialect " + string(trial.Dialect)
	return nil
}

// probe checks whether an HTTP endpoint answers.
func (t *tryout) probe(ctx context.Context, p Part) error {
	to := p.Preflight.Transport
	return remote.Probe(ctx, remote.Config{URL: to.URL, Headers: to.Headers, Allow: t.settings.HTTPAllow})
}

// awaitHeartbeat waits for a heartbeat of a service on NATS with the state ready. A heartbeat with another state fails
// the check only if no other instance is ready in time.
func (t *tryout) awaitHeartbeat(ctx context.Context, id string, limit time.Duration) (detail string, err error) {
	nc, err := t.connect()
	if err != nil {
		return "", err
	}
	subject := t.Prefix.Heartbeat(id)
	sub, err := nc.SubscribeSync(subject)
	if err != nil {
		return "", fmt.Errorf("subscribing to its heartbeats: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection is closed soon
	_ = nc.FlushWithContext(ctx)             // then the first NextMsg returns a denial
	last := fmt.Errorf("no heartbeat on %s within %s", subject, limit)
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			return "", last
		} else if err != nil {
			return "", fmt.Errorf("subscribing to its heartbeats: %w", err)
		}
		b, err := heartbeat.Parse(m.Data)
		switch {
		case err != nil:
			last = fmt.Errorf("invalid heartbeat on %s: %w", subject, err)
		case b.ID != id:
			last = fmt.Errorf("a heartbeat of %q came on %s", b.ID, subject)
		case b.State == heartbeat.Ready:
			return strings.TrimSpace("ready " + b.Version), nil
		default:
			last = fmt.Errorf("it sends heartbeats with the state %s (%s)", b.State, cmp.Or(b.Reason, "no reason given"))
		}
	}
}

// count reports the progress.
func (t *tryout) count(id string, done bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !done {
		t.running = append(t.running, id)
	} else {
		t.done++
		t.running = slices.DeleteFunc(t.running, func(r string) bool { return r == id })
	}
	line := fmt.Sprintf("%d of %d tested", t.done, len(t.parts))
	if len(t.running) > 0 {
		line += "; testing " + strings.Join(t.running, ", ")
	}
	if t.Progress != nil {
		t.Progress(line)
	}
}
