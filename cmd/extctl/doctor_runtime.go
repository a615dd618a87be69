package main

import (
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
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/remote"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// tryAll tests every part, as many in parallel as the configuration allows.
func (d *doctor) tryAll(ctx context.Context) error {
	prefix, err := wire.ParsePrefix(d.nats.Prefix)
	if err != nil {
		return daemon.UsageError{Err: err}
	}
	defer bridge.Watchdog(slog.New(slog.DiscardHandler))()
	t := &tryout{doctor: d, starts: make(chan struct{}, bridge.MaxStarts()), prefix: prefix, terminal: daemon.IsTerminal(d.stderr), connect: sync.OnceValues(func() (*nats.Conn, error) { return d.connect(ctx) })}
	defer t.close()
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(d.host.settings().Doctor.Parallel, len(d.parts)) {
		wg.Go(func() { // ends when no part is left, or with ctx; waited for below
			for i := int(next.Add(1)) - 1; i < len(d.parts) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				t.try(ctx, i)
			}
		})
	}
	wg.Wait()
	t.progress("")
	return nil
}

// connect connects to NATS for the extensions that are services there.
func (d *doctor) connect(ctx context.Context) (*nats.Conn, error) {
	target, err := d.nats.Resolve()
	if err != nil {
		return nil, err
	}
	return target.Connect(ctx, daemon.ConnectOptions{Name: "extctl doctor", NoBuffer: true})
}

// tryout is the state of the runtime checks.
type tryout struct {
	*doctor
	prefix  wire.Prefix
	connect func() (*nats.Conn, error) // connects on the first call
	used    atomic.Bool
	starts  chan struct{} // has an element for each stdio extension that is being tested, at most as many as a bridge starts at once

	terminal bool // stderr is one

	mu      sync.Mutex
	running []string // ids of the parts being tested
	done    int
}

func (t *tryout) close() {
	if !t.used.Load() {
		return
	}
	if nc, err := t.connect(); err == nil {
		nc.Close()
	}
}

// try tests part i, unless the static checks have failed or it is gated.
func (t *tryout) try(ctx context.Context, i int) {
	p, r := t.parts[i], &t.results[i]
	if r.Outcome != outcomeOK {
		t.count(r.ID, true)
		return
	}
	if p.m.Transport.Type == manifest.Stdio {
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
	switch p.m.Transport.Type {
	case manifest.Stdio:
		err = t.stdio(ctx, p, r)
	case manifest.NATS:
		r.Detail, err = t.awaitHeartbeat(ctx, r.ID, limit)
	case manifest.HTTP:
		r.Detail, err = "reachable", t.probe(ctx, p)
	}
	r.ElapsedMS = float64(time.Since(began).Microseconds()) / 1000
	if err != nil {
		r.Outcome, r.Error, r.Detail = outcomeFail, err.Error(), ""
	}
}

// limit is the time limit of one test. A stdio extension gets at least the time that a bridge gives its first start.
func (t *tryout) limit(p part) time.Duration {
	s := t.host.settings()
	switch {
	case t.timeout > 0:
		return t.timeout
	case p.m.Transport.Type == manifest.NATS:
		return s.Doctor.HeartbeatTimeout
	case p.m.Transport.Type == manifest.Stdio:
		return max(s.Doctor.Timeout, s.StartLimit(p.m.Plugin.ID, p.m.Transport).Max)
	}
	return s.Doctor.Timeout
}

// stdio starts an extension, makes the handshake, lists its tools and stops it.
func (t *tryout) stdio(ctx context.Context, p part, r *doctorResult) error {
	trial := t.host.local.Examine(ctx, p.Candidate, p.m)
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
func (t *tryout) probe(ctx context.Context, p part) error {
	to := p.Preflight.Transport
	return remote.Probe(ctx, remote.Config{URL: to.URL, Headers: to.Headers, Allow: t.host.settings().HTTPAllow})
}

// awaitHeartbeat waits for a heartbeat of a service on NATS with the state ready. A heartbeat with another state fails
// the check only if no other instance is ready in time.
func (t *tryout) awaitHeartbeat(ctx context.Context, id string, limit time.Duration) (detail string, err error) {
	t.used.Store(true)
	nc, err := t.connect()
	if err != nil {
		return "", err
	}
	subject := t.prefix.Heartbeat(id)
	sub, err := nc.SubscribeSync(subject)
	if err != nil {
		return "", fmt.Errorf("subscribing to its heartbeats: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection is closed soon
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
			last = fmt.Errorf("it sends heartbeats with the state %s (%s)", b.State, orDash(b.Reason))
		}
	}
}

// count updates the progress line.
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
	t.progress(line)
}

// progress replaces the progress line on a terminal; it prints nothing elsewhere.
func (t *tryout) progress(line string) {
	if t.terminal {
		fmt.Fprint(t.stderr, "\r\x1b[K", terminal.Short(line, 100))
	}
}
