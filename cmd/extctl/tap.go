package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// tapFlags are the flags of tap. They are the params of the request, too.
type tapFlags struct {
	calls.Query
	ForMS   int64 `json:"for_ms"`
	time    time.Duration
	bridges []string
}

func tapCmd(a *app) *cobra.Command {
	var f tapFlags
	cmd := &cobra.Command{
		Use:   "tap ID",
		Short: "Print the calls of an extension while bridges answer them",
		Long: `Print a line for each call of an extension, and its members, that a bridge has answered, until the time is over: who called which
tool, how long it took, and how it ended. Arguments and results are not shown.

A bridge sends at most 500 calls a second to one tap. It ends a tap after the time of --for, also if this command ends earlier.`,
		Example: "  extctl tap hello\n  extctl tap hello --failed --for 5m --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if f.ID, err = optionalID(args); err != nil {
				return err
			}
			if f.ForMS = f.time.Milliseconds(); f.time < time.Second || f.time > 10*time.Minute {
				return usage("--for %v: want a duration from 1s to 10m", f.time)
			}
			return a.withMesh(cmd, 0, func(ctx context.Context, s *session) error { return tap(ctx, s, &f) })
		},
		ValidArgsFunction: a.completeIDs,
	}
	flags := cmd.Flags()
	flags.DurationVar(&f.time, "for", 30*time.Second, "end after this `DURATION`, at most 10m")
	flags.BoolVar(&f.Failed, "failed", false, "only failures")
	flags.StringVar(&f.Tool, "tool", "", "only calls of the tool with this `NAME` in its extension")
	flags.StringVar(&f.Agent, "caller", "", "only calls of this `CALLER`")
	addBridges(cmd, &f.bridges)
	if err := cmd.RegisterFlagCompletionFunc("for", cobra.NoFileCompletions); err != nil { // the flag is defined above
		panic(err)
	}
	return cmd
}

// taps are the bridges that a tap was requested from. The last token of a reply subject is the bridge's index.
type taps struct {
	bridges  []string
	messages chan *nats.Msg
	open     map[string]bool // those that have not sent the end of the tap
	failed   failures
	dropped  uint64
}

func tap(ctx context.Context, s *session, f *tapFlags) error {
	bridges, err := bridgesToAsk(ctx, s, f.bridges)
	if err != nil {
		return err
	}
	if err := s.checkKnown(ctx, f.ID, f.bridges); err != nil {
		return err
	}
	ctx, cancel := s.denied.watch(ctx, s.prefix.Control("")) // the beginning of their subjects
	defer cancel()
	t := &taps{bridges: bridges, messages: make(chan *nats.Msg, 4096), open: map[string]bool{}}
	stop, err := t.request(s, f)
	if err != nil {
		return err
	}
	defer stop()
	s.note("extctl: the calls of %s on %s, for %v", terminal.Clean(f.ID), words.Plural(len(bridges), "bridge"), f.time)
	if err := t.wait(ctx, s, f.time+requestTimeout); err != nil {
		return err
	}
	if len(t.failed) == len(bridges) {
		return allFailed(t.failed)
	}
	if t.dropped > 0 {
		s.note("extctl: %d calls are not shown: there were too many", t.dropped)
	}
	return t.failed.report(s.app)
}

// request sends the requests. Messages arrive until stop is called.
func (t *taps) request(s *session, f *tapFlags) (stop func(), err error) {
	params, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	inbox := natsconn.Inbox(s.nc)
	sub, err := s.nc.ChanSubscribe(inbox+".*", t.messages)
	if err != nil {
		return nil, err
	}
	stop = func() { _ = sub.Unsubscribe() } // fails only if the connection is closed
	for n, b := range t.bridges {
		t.open[b] = true
		request := &nats.Msg{Subject: s.prefix.Control(b), Reply: inbox + "." + strconv.Itoa(n), Data: jsonrpc.AppendRequest(nil, []byte("1"), "tap", params)}
		if err := s.nc.PublishMsg(request); err != nil {
			stop()
			return nil, err
		}
	}
	return stop, nil
}

// wait prints the calls until all bridges have sent the end of the tap. One that hangs does not, and fails after the limit.
func (t *taps) wait(ctx context.Context, s *session, limit time.Duration) error {
	closed := s.nc.StatusChanged(nats.CLOSED)
	defer s.nc.RemoveStatusListener(closed)
	late := time.NewTimer(limit)
	defer late.Stop()
	for len(t.open) > 0 {
		select {
		case <-ctx.Done():
			return cmp.Or(endedBy(ctx), streamEnd(ctx.Err()))
		case <-closed:
			return nats.ErrConnectionClosed
		case <-late.C:
			for _, b := range t.bridges {
				if t.open[b] {
					t.fail(s, b, fail(exitTimeout, "bridge %s did not end the tap", b))
				}
			}
		case m := <-t.messages:
			if err := t.receive(s, m); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *taps) fail(s *session, bridge string, err error) {
	delete(t.open, bridge)
	t.failed = append(t.failed, s.failureOf(bridge, err))
}

// receive handles a message of a bridge: a call, the end of the tap, or the response to the request.
func (t *taps) receive(s *session, m *nats.Msg) error {
	n, err := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	if err != nil || n < 0 || n >= len(t.bridges) || !t.open[t.bridges[n]] {
		return nil
	}
	bridge := t.bridges[n]
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		t.fail(s, bridge, fail(exitUnavailable, "bridge %s is not available: no subscriber on %s", bridge, s.prefix.Control(bridge)))
		return nil
	}
	var message struct {
		Method string
		Params json.RawMessage
		Error  *rpc.Error
	}
	err = json.Unmarshal(m.Data, &message)
	switch {
	case err != nil:
		t.fail(s, bridge, fmt.Errorf("bridge %s: %w", bridge, err))
	case message.Error != nil:
		t.fail(s, bridge, fmt.Errorf("bridge %s: %w", bridge, message.Error))
	case message.Method == "end":
		var end struct {
			Dropped  uint64
			Stopping bool
		}
		_ = json.Unmarshal(message.Params, &end) // 0 and false if they are missing
		if end.Stopping {
			s.note("extctl: bridge %s stops, and sends no more calls", terminal.Clean(bridge))
		}
		t.dropped += end.Dropped
		delete(t.open, bridge)
	case message.Method == "call":
		c := callJSON{Bridge: bridge}
		if err := json.Unmarshal(message.Params, &c.Record); err != nil {
			return nil
		}
		return printTapped(s, c)
	}
	return nil
}

// printTapped prints a line for a call: an object with --json.
func printTapped(s *session, c callJSON) error {
	if s.json {
		return s.printJSON(c)
	}
	_, err := fmt.Fprintf(s.stdout, "%s  %-16s  %-16s  %9s  %-12s  %s  %s\n", clockTime(c.At, time.Now()), terminal.Clean(c.ID), terminal.Clean(toolOf(c.Record)),
		usText(c.TookUS), terminal.Clean(cmp.Or(c.Agent, "-")), terminal.Clean(cmp.Or(c.CallID, "-")), terminal.Short(errorOf(c.Record), 80))
	return err
}
