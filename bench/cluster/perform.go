package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/bench/internal/proc"
	"github.com/extmesh/extmesh/bench/internal/wait"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// outcome is what a row found.
type outcome struct {
	row       row
	victim    string
	right     arrival // since the fault
	back      arrival // since the restart, or the thaw
	elections elections
	inflight  int // calls at the fault, of the victim's extension, or all
	load      *load
	differ    int
	remarks   []string
	saw       []string // what a follower saw of the extensions that are called
}

// killLimit is how long the catalog may take to be right after a death before the row says never.
const killLimit = time.Minute

// perform runs one row.
func (s *stage) perform(ctx context.Context, r row) (string, error) {
	if err := s.settled(ctx); err != nil {
		return "", err
	}
	if r.server {
		if err := s.goHome(ctx); err != nil {
			return "", err
		}
	}
	v, err := r.pick(ctx, s)
	if err != nil {
		return "", err
	}
	out := outcome{row: r, victim: v.label}
	if r.server {
		if err := s.stepAside(ctx, v.node, &out); err != nil {
			return "", err
		}
	}
	if out.load, err = s.startLoad(ctx); err != nil {
		return "", err
	}
	ended := false
	defer func() {
		if !ended {
			out.load.end()
		}
	}()
	wait.For(ctx, time.Second)

	if err := s.strike(ctx, r, v, &out); err != nil {
		return "", err
	}
	wait.For(ctx, time.Second)
	out.load.end()
	ended = true
	n, docs, err := s.difference(ctx, 5*time.Second)
	if err != nil {
		return "", err
	}
	if out.differ = n; n > 0 {
		out.remark("differ: %s", strings.Join(docs, " "))
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return out.String(), nil
}

func (o *outcome) remark(format string, args ...any) {
	o.remarks = append(o.remarks, fmt.Sprintf(format, args...))
}

// stepAside moves what measures away from the server that is about to go, and notes who is connected to it.
func (s *stage) stepAside(ctx context.Context, name string, out *outcome) error {
	n, err := s.node(name)
	if err != nil {
		return err
	}
	if err := avoid(ctx, s.ops, name); err != nil {
		return err
	}
	if err := avoid(ctx, s.canary.nc, name); err != nil {
		return err
	}
	if err := s.spread(ctx); err != nil {
		return err
	}
	at := 0
	for _, f := range s.crowd.followers {
		if f.nc.ConnectedServerName() == name {
			at++
		}
	}
	guests, err := s.guests(n)
	if err != nil {
		return err
	}
	out.remark("at that server: %d followers, a caller of three, %s", at, strings.Join(guests, ", "))
	return nil
}

// strike does the fault, undoes it, and measures both.
func (s *stage) strike(ctx context.Context, r row, v victim, out *outcome) error {
	if v.fence && r.stop { // it is to be caught with something to write
		hush := s.canary.keepSinging(ctx)
		wait.For(ctx, 300*time.Millisecond)
		defer hush()
		if err := s.fault(r, v, out); err != nil {
			return err
		}
		hush()
	} else if err := s.fault(r, v, out); err != nil {
		return err
	}
	since := time.Now()
	s.canary.sing()
	w := s.crowd.witness(ctx, since)
	defer w.stop()
	var probing sync.WaitGroup
	probing.Go(func() { out.elections = s.elections(ctx, since) }) // ends with killLimit
	defer probing.Wait()
	if v.steal {
		if err := s.steal(ctx); err != nil {
			return err
		}
	}
	limit := killLimit
	if r.stop {
		limit = r.hold
	}
	out.right = s.crowd.await(ctx, since, limit, v.right)

	undone := time.Now()
	switch {
	case r.stop:
		wait.For(ctx, r.hold-time.Since(since))
		if err := s.thaw(ctx, v, out); err != nil {
			return err
		}
		undone = time.Now()
		if out.right.missing > 0 && v.calls == "" {
			late := s.crowd.await(ctx, since, killLimit, v.right)
			out.remark("with the thaw the change showed after %s", late)
		}
	case v.again != nil:
		if err := v.again(); err != nil {
			return err
		}
	}
	out.back = s.crowd.await(ctx, undone, patience, s.whole)
	if out.back.missing > 0 {
		return fmt.Errorf("%s after the fault was undone %d followers do not show everything as ready: %s", patience, out.back.missing, summary(s.crowd.followers[0].catalog))
	}
	out.saw = w.lines()
	return nil
}

// fault kills or stops the victim.
func (s *stage) fault(r row, v victim, out *outcome) error {
	out.inflight = out.load.now(v.calls)
	switch {
	case r.stop:
		return proc.Freeze(v.pid)
	case v.own != nil:
		return v.own.Kill()
	default:
		return proc.KillPID(v.pid)
	}
}

// steal has the lease freed while its holder is stopped, and waits until the other registry has it.
func (s *stage) steal(ctx context.Context) error {
	had, err := s.leaseHolder(ctx)
	if err != nil {
		return err
	}
	kv, err := s.js.KeyValue(ctx, mesh.Prefix(mesh.DefaultPrefix).Bucket())
	if err != nil {
		return err
	}
	if err := kv.Delete(ctx, mesh.KeyLease); err != nil {
		return fmt.Errorf("taking the lease away: %w", err)
	}
	return wait.Until(ctx, 30*time.Second, "the other registry leads", func() error {
		has, err := s.leaseHolder(ctx)
		if err == nil && has == had {
			err = fmt.Errorf("the lease is still %s's", had)
		}
		return err
	})
}

// thaw lets the victim go on. A leader finds changes to write, and what became of its writes is noted.
func (s *stage) thaw(ctx context.Context, v victim, out *outcome) error {
	if !v.fence {
		return proc.Thaw(v.pid)
	}
	from := v.own.LogEnd()
	hush := s.canary.keepSinging(ctx)
	defer hush()
	wait.For(ctx, 200*time.Millisecond)
	if err := proc.Thaw(v.pid); err != nil {
		return err
	}
	wait.For(ctx, 3*time.Second)
	hush()
	refused := v.own.Said(from, "could not write to the catalog")
	down := append(v.own.Said(from, "no longer leading"), v.own.Said(from, "lost the lease")...)
	switch {
	case len(refused) > 0:
		out.remark("the thawed leader's write was refused: `%s`", errorOf(refused[0]))
	case len(down) > 0:
		out.remark("the thawed leader stepped down by its own clock before it wrote: `%s`", errorOf(down[0]))
	default:
		out.remark("the thawed leader said nothing of a refused write")
	}
	return nil
}

// errorOf is the error in a line of a program's log.
func errorOf(line string) string {
	var l struct {
		Error string `json:"error"`
	}
	if json.Unmarshal([]byte(line), &l) != nil || l.Error == "" {
		return line
	}
	return l.Error
}

// elections is how long JetStream itself was away.
type elections struct{ write, meta time.Duration }

func (e elections) String() string {
	text := func(d time.Duration) string {
		if d == 0 {
			return "never"
		}
		return ms(d)
	}
	return text(e.write) + " / " + text(e.meta)
}

// elections asks until the catalog's stream takes a write, and until the meta leader answers.
func (s *stage) elections(ctx context.Context, since time.Time) (e elections) {
	ctx, cancel := context.WithTimeout(ctx, killLimit)
	defer cancel()
	try := func(f func(context.Context) error) time.Duration {
		for {
			one, done := context.WithTimeout(ctx, 300*time.Millisecond)
			err := f(one)
			done()
			if err == nil {
				return time.Since(since)
			}
			if !wait.For(ctx, 10*time.Millisecond) {
				return 0
			}
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { // ends with ctx
		e.write = try(func(ctx context.Context) error {
			_, err := s.js.Publish(ctx, "$KV.ext_catalog.bench", []byte("probe"), jetstream.WithRetryAttempts(0))
			return err
		})
	})
	wg.Go(func() { // ends with ctx
		e.meta = try(func(ctx context.Context) error {
			_, err := s.ops.RequestWithContext(ctx, "$JS.API.STREAM.NAMES", nil)
			return err
		})
	})
	wg.Wait()
	return e
}
