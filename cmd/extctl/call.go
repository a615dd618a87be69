package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/toolargs"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/mesh/schema"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// callTimeout is the default timeout of a call; it equals the bridge's default.
const callTimeout = 30 * time.Second

func callCmd(a *app) *cobra.Command {
	var o mesh.ClientOptions
	var raw bool
	cmd := &cobra.Command{
		Use:   "call TOOL [JSON | key=value… | @file | -]",
		Short: "Call a tool and print its result",
		Long: `Call a tool and print its result: unchanged, except that on a terminal an MCP result is printed as text. TOOL is the registered name (ext_hello_greet), <id>/<local name>
(hello/greet), or the local name (greet) if no other extension has a tool of that name.

Arguments are one JSON object, given directly, in a @file or on stdin (-), or pairs: key=value is a string
unless the tool's schema requires another type; key:=JSON is always JSON.`,
		Example: `  extctl call ext_hello_greet name=Ada
  extctl call clock/now tz=Europe/Rome
  extctl call ext_textkit_wordcount '{"text": "one two"}'`,
		Args: cobra.MinimumNArgs(1),
		RunE: a.withStdin(a.onMesh(callTimeout, func(ctx context.Context, s *session, args []string) error {
			result, err := s.call(ctx, args[0], args[1:], o)
			if err != nil {
				return err
			}
			return s.printResult(result, raw)
		})),
		ValidArgsFunction: a.completeTools,
	}
	cmd.Flags().StringVar(&o.Agent, "agent-id", "", "the `ID` of the calling agent, for extensions that require it")
	cmd.Flags().BoolVar(&raw, "raw", false, "print the result unchanged on a terminal, too")
	cmd.Flags().StringVar(&o.Session, "session-id", "", "the `ID` of the agent's session")
	return cmd
}

// withStdin wraps a command: if its arguments are NAME - or NAME @FILE, standard input or the file is read before the time of its
// call begins.
func (a *app) withStdin(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 2 || args[1] != "-" && !strings.HasPrefix(args[1], "@") {
			return run(cmd, args)
		}
		text, err := readUntil(cmd.Context(), func() ([]byte, error) {
			in := a.stdin
			if name, isFile := strings.CutPrefix(args[1], "@"); isFile {
				f, err := os.Open(name)
				if err != nil {
					return nil, err
				}
				defer func() { _ = f.Close() }() // read only
				in = f
			}
			return io.ReadAll(io.LimitReader(in, toolargs.MaxArguments+1))
		})
		switch {
		case err != nil && cmd.Context().Err() != nil:
			return err
		case err != nil:
			return daemon.UsageError{Err: fmt.Errorf("arguments: %w", err)}
		}
		a.stdin = bytes.NewReader(text)
		return run(cmd, []string{args[0], "-"})
	}
}

// readStdin reads standard input, at most limit bytes, until it ends or ctx does.
func (a *app) readStdin(ctx context.Context, limit int64) ([]byte, error) {
	return readUntil(ctx, func() ([]byte, error) { return io.ReadAll(io.LimitReader(a.stdin, limit)) })
}

// readUntil returns what read returns, unless ctx ends before.
func readUntil(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	type input struct {
		text []byte
		err  error
	}
	done := make(chan input, 1)
	go func() { // ends with the input, or with the program: a pipe that nobody writes to cannot be opened or read
		text, err := read()
		done <- input{text, err}
	}()
	select {
	case in := <-done:
		return in.text, in.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *session) call(ctx context.Context, tool string, args []string, o mesh.ClientOptions) (json.RawMessage, error) {
	o.Prefix, o.Schemas = string(s.prefix), schema.Compile
	var input json.RawMessage
	c, t, err := s.findTool(ctx, tool)
	notFound, _ := errors.AsType[*mesh.NotFoundError](err)
	switch {
	case err == nil:
		o.Catalog, input = c, t.InputSchema
		tool = cmp.Or(t.Name, tool)
	case (errors.Is(err, mesh.ErrNoCatalog) || errors.Is(err, nats.ErrPermissionViolation)) && strings.Contains(tool, "/"):
		// <id>/<tool> is sufficient for a call; the catalog is only needed to resolve other names.
	case notFound != nil && strings.Contains(tool, "/"):
		o.Catalog = c // an extension that it lacks is called all the same: the catalog may have been lost
	default:
		return nil, err
	}
	raw, err := s.arguments(tool, args, input)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.watchCall(ctx, c, tool)
	defer cancel()
	var p callProgress
	stop := p.show(ctx, s.app)
	result, err := s.callOrWait(ctx, o, tool, raw, p.notify(s.app))
	stop()
	if by := endedBy(ctx); err != nil && by != nil {
		return nil, by
	}
	if _, still := errors.AsType[*mesh.NotFoundError](err); still && notFound != nil {
		return nil, notFound // with the nearest names
	}
	if err != nil && exitCode(err) == exitUsage && len(input) > 0 {
		f := &failure{code: exitUsage, err: err}
		if args, ok := toolargs.Example(input); ok {
			f.hint = "for example: " + callLine(tool, args)
		} else {
			f.hint = "its arguments: extctl tool " + tool
		}
		return nil, f
	}
	if at, limited := ctx.Deadline(); err != nil && limited && time.Until(at) <= 0 { // ctx itself may end a little later
		return nil, explainCallTimeout(err, tool, cmp.Or(s.timeout, callTimeout))
	}
	return result, err
}

// explainCallTimeout states how long a call had, and whether the tool may have run.
func explainCallTimeout(err error, tool string, limit time.Duration) error {
	f := &failure{code: exitCode(err), err: err, hint: fmt.Sprintf("--timeout %s gives it longer", 4*limit)}
	e := rpc.AsError(err)
	if !errors.Is(e, rpc.CodeTimeout) {
		f.hint = fmt.Sprintf("the call had %s; ", limit) + f.hint
		return f
	}
	ran := "it may have run"
	if e.Details().Ran == rpc.RanNo {
		ran = "it has not run"
	}
	f.err = &reworded{fmt.Sprintf("%s did not answer within %s; %s", tool, limit, ran), err}
	return f
}

// callOrWait calls a tool. If no instance takes the call, but the extension may be on its way back, it follows the catalog
// and waits for as long as the call may take: the catalog in o is not updated.
func (s *session) callOrWait(ctx context.Context, o mesh.ClientOptions, tool string, args json.RawMessage, progress func(json.RawMessage)) (json.RawMessage, error) {
	o.WaitReady = -1
	result, err := mesh.NewClient(s.nc, o).CallStream(ctx, tool, args, progress)
	if o.Catalog == nil || !mayReturn(o.Catalog, tool, err) {
		return result, err
	}
	o.WaitReady, o.NoRepeat = 0, true // the Client before may have repeated it
	// If the catalog cannot be followed, the error of the first call is the answer.
	_ = s.follow(ctx, func(ctx context.Context, c *mesh.Catalog) error {
		if err := c.WaitFor(ctx, func(c *mesh.Catalog) bool { _, _, err := c.Resolve(tool); return err == nil }); err != nil {
			return err
		}
		o.Catalog = c
		again, againErr := mesh.NewClient(s.nc, o).CallStream(ctx, tool, args, progress)
		if rpc.AsError(err).Details().Ran == rpc.RanNo || againErr == nil || rpc.AsError(againErr).Details().Ran != rpc.RanNo {
			result, err = again, againErr
		}
		return nil
	})
	if err != nil && errors.Is(ctx.Err(), context.Canceled) && rpc.AsError(err).Details().Ran == rpc.RanNo {
		err = ctx.Err() // the user has ended the wait
	}
	return result, err
}

// mayReturn reports whether a call failed because no instance takes it, for now. A call that has ended with its instance may
// have run: it is made once more only if its tool allows that.
func mayReturn(c *mesh.Catalog, tool string, err error) bool {
	if err == nil {
		return false
	}
	e := rpc.AsError(err)
	if !errors.Is(e, rpc.CodeUnavailable) && !errors.Is(e, rpc.CodeExited) {
		return false
	}
	x, t, resolveErr := c.Resolve(tool)
	if resolveErr != nil || e.Details().Ran != rpc.RanNo && !(errors.Is(e, rpc.CodeExited) && t.Repeatable()) {
		return false
	}
	return x.State.State == heartbeat.Ready || wire.IsReturning(x.State)
}

// watchCall returns ctx for calls of a tool; it ends when NATS denies one. Without a catalog, tool is <id>/<local name>.
func (s *session) watchCall(ctx context.Context, c *mesh.Catalog, tool string) (context.Context, context.CancelFunc) {
	id, _, _ := strings.Cut(tool, "/")
	subject := ""
	if c != nil {
		if e, _, err := c.Resolve(tool); err == nil {
			id, subject = e.ID, e.Spec.Subject
		}
	}
	return s.denied.watch(ctx, cmp.Or(subject, s.prefix.RPC(id))+`"`)
}

// arguments parses the arguments of a tool. The error of arguments that are not written key=value has a hint; for a tool with
// one argument it is the whole command line.
func (s *session) arguments(tool string, args []string, schema json.RawMessage) (json.RawMessage, error) {
	raw, err := toolargs.Parse(args, schema, s.stdin)
	if err == nil {
		return raw, nil
	}
	f := daemon.UsageError{Err: err}
	if !slices.ContainsFunc(args, func(arg string) bool { return !strings.Contains(arg, "=") }) {
		return nil, f
	}
	f.Hint = "arguments are written key=value; they are listed by: extctl tool " + tool
	known := toolargs.Properties(schema)
	required := slices.DeleteFunc(slices.Clone(known), func(p toolargs.Property) bool { return !p.Required })
	if len(required) == 0 && len(known) == 1 {
		required = known
	}
	if len(args) == 1 && len(required) == 1 && !strings.ContainsAny(args[0][:min(1, len(args[0]))], "-@{[") {
		f.Hint = "arguments are written key=value: " + callLine(tool, []string{terminal.ShellWord(required[0].Name + "=" + args[0])})
	}
	return nil, f
}

// callLine is a command line that calls a tool.
func callLine(tool string, args []string) string {
	return strings.Join(append([]string{"extctl call", tool}, args...), " ")
}

// progressAfter is how long a call may run before its progress is shown.
const progressAfter = time.Second

// callProgress shows on a terminal how long a call has been running, and the progress that the tool reports.
type callProgress struct {
	mu   sync.Mutex
	last string // what the tool has reported last
}

// report stores a progress notification of the tool.
func (p *callProgress) report(notification json.RawMessage) {
	text := progressText(notification)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = text
}

// notify is the function that gets the tool's progress; nil, which requests none, if stderr is not a terminal.
func (p *callProgress) notify(a *app) func(json.RawMessage) {
	if a.json || !isScreen(a, a.stderr) {
		return nil
	}
	return p.report
}

// progressText is a progress notification in words: 2 of 4, copying.
func progressText(notification json.RawMessage) string {
	var n struct {
		Params struct {
			Progress json.Number `json:"progress"`
			Total    json.Number `json:"total"`
			Message  string      `json:"message"`
		} `json:"params"`
	}
	if json.Unmarshal(notification, &n) != nil || n.Params.Progress == "" {
		return ""
	}
	text := n.Params.Progress.String()
	if n.Params.Total != "" {
		text += " of " + n.Params.Total.String()
	}
	if n.Params.Message != "" {
		text += ", " + n.Params.Message
	}
	return text
}

// line is the line on the terminal after a call has been running for some time.
func (p *callProgress) line(took time.Duration, width int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := strconv.Itoa(int(took.Seconds())) + " s"
	if p.last != "" {
		text += "  " + p.last
	}
	return terminal.Short(text, max(width-1, 10))
}

// show draws the progress on stderr, if that is a terminal, until stop is called.
func (p *callProgress) show(ctx context.Context, a *app) (stop func()) {
	if a.json || !isScreen(a, a.stderr) {
		return func() {}
	}
	began, drawn := time.Now(), false
	end := every(ctx, progressAfter/4, func() {
		if took := time.Since(began); took >= progressAfter {
			fmt.Fprintf(a.stderr, "\r\x1b[K%s", p.line(took, terminal.Width(a.stderr)))
			drawn = true
		}
	})
	return func() {
		end()
		if drawn {
			fmt.Fprint(a.stderr, "\r\x1b[K")
		}
	}
}
