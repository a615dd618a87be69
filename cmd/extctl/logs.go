package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
)

// logLine is one line of a child's stderr, as bridges store and publish it.
type logLine struct {
	ID       string    `json:"id"`
	Instance string    `json:"instance"`
	TS       time.Time `json:"ts"`
	Line     string    `json:"line"`
}

// key identifies a line, to skip lines that are both stored and published while logs runs.
func (l logLine) key() string { return fmt.Sprint(l.Instance, l.TS.UnixNano(), l.Line) }

func logsCmd(a *app) *cobra.Command {
	var f bridgeFlags
	var follow bool
	var lines int
	cmd := &cobra.Command{
		Use:   "logs [-f] ID",
		Short: "Print the last lines of an extension's stderr",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			limit := requestTimeout
			if follow {
				limit = 0
			}
			return a.withMesh(cmd, limit, func(ctx context.Context, s *session) error {
				return s.logs(ctx, f, args[0], lines, follow)
			})
		},
		ValidArgsFunction: a.completeIDs,
	}
	f.add(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep printing new lines")
	cmd.Flags().IntVarP(&lines, "lines", "n", 100, "start with the last `N` lines")
	return cmd
}

func (s *session) logs(ctx context.Context, f bridgeFlags, id string, lines int, follow bool) error {
	ctx, cancel := s.denied.watch(ctx, s.prefix.Log(id)+`"`)
	defer cancel()
	live := make(chan *nats.Msg, 1024)
	closed := s.nc.StatusChanged(nats.CLOSED)
	defer s.nc.RemoveStatusListener(closed)
	if follow { // subscribe before reading the stored lines, so that no line is missed
		sub, err := s.nc.ChanSubscribe(s.prefix.Log(id), live)
		if err != nil {
			return err
		}
		defer func() { _ = sub.Unsubscribe() }() // fails only if the connection is closed
	}
	past, failed, err := s.pastLogs(ctx, f, id, lines, follow)
	if err != nil {
		return err
	}
	if s.json && !follow {
		return cmp.Or(s.printJSON(struct {
			header
			Lines  []logLine `json:"lines"`
			Failed failures  `json:"failed,omitempty"`
		}{Lines: append([]logLine{}, past...), Failed: failed}), failed.exit())
	}
	seen := map[string]bool{}
	for _, l := range past {
		seen[l.key()] = true
		if err := s.printLog(l); err != nil {
			return err
		}
	}
	failed.print(s.app)
	for follow {
		select {
		case <-ctx.Done():
			return cmp.Or(endedBy(ctx), streamEnd(ctx.Err()))
		case <-closed:
			return nats.ErrConnectionClosed
		case m := <-live:
			var l logLine
			if json.Unmarshal(m.Data, &l) != nil || seen[l.key()] || f.instance != "" && l.Instance != f.instance {
				continue
			}
			if err := s.printLog(l); err != nil {
				return err
			}
		}
	}
	return failed.exit()
}

// followTimeout limits how long a bridge that hangs can delay new lines.
const followTimeout = 2 * time.Second

// pastLogs are the last lines that the bridges have stored, oldest first. With follow, a timeout is only printed, because
// new lines can still arrive.
func (s *session) pastLogs(ctx context.Context, f bridgeFlags, id string, lines int, follow bool) ([]logLine, failures, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	limit := time.Duration(0)
	if follow {
		limit = followTimeout
	}
	type kept struct {
		Lines []logLine `json:"lines"`
	}
	answers, failed, err := operate[kept](ctx, s, f, "logs", id, max(lines, 1), limit)
	if follow && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		s.printError(exitTimeout, err)
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var past []logLine
	for _, a := range answers {
		past = append(past, a.parsed.Lines...)
	}
	slices.SortStableFunc(past, func(a, b logLine) int { return a.TS.Compare(b.TS) })
	return past[max(0, len(past)-max(lines, 0)):], failed, nil
}

// printLog prints one line. With --json and -f each line is a JSON object.
func (s *session) printLog(l logLine) error {
	if s.json {
		return s.printJSON(l)
	}
	instance := l.Instance[:min(len(l.Instance), 6)]
	_, err := fmt.Fprintf(s.stdout, "%s %s %s\n", l.TS.Local().Format(time.TimeOnly), cmp.Or(clean(instance), "-"), clean(l.Line))
	return err
}
