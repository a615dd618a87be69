package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/doctor"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// doctorJSON is the output of doctor.
type doctorJSON struct {
	header
	Results     []doctor.Result       `json:"results"`
	Diagnostics []manifest.Diagnostic `json:"diagnostics"`
	Summary     struct {
		OK   int `json:"ok"`
		Fail int `json:"fail"`
		Skip int `json:"skip"`
	} `json:"summary"`
}

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	hostFlags
	runtime  bool
	only     []string
	stateDir string
}

func doctorCmd(a *app) *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor [--runtime] [DIR…]",
		Short: "Check this host's extensions as a bridge would; with --runtime, start each",
		Long: `Check extensions.yaml, every manifest and skill, the requirements, and the environment variables withheld from
children, as a bridge on this host would; in each DIR, if given, instead of the search_paths.

With --runtime also test each extension, several in parallel: a stdio extension is started, its tools are listed,
and it is stopped, as many at once as a bridge starts; a service on NATS must send a heartbeat; an HTTP endpoint receives HEAD, then GET, and fails
if its path does not exist or it refuses the credentials. --timeout limits each test (default: extensions.doctor
in extensions.yaml, and the manifest's handshake_timeout).

The exit code is 9 if anything is an error. A gated extension is not an error: it is skipped, as by a bridge.`,
		Example: "  extctl doctor --runtime ./extensions",
		RunE: func(cmd *cobra.Command, args []string) error {
			o.search = append(o.search, args...)
			return runDoctor(cmd.Context(), a, o)
		},
	}
	o.add(cmd)
	cmd.Flags().BoolVar(&o.runtime, "runtime", false, "also test each extension")
	cmd.Flags().StringArrayVar(&o.only, "ext", nil, "only the extension `ID`, its members and their findings; may be repeated")
	cmd.Flags().StringVar(&o.stateDir, "state-dir", bridge.DefaultStateDir(), "with --runtime, `DIR` in which each extension gets its own state directory")
	return cmd
}

func runDoctor(ctx context.Context, a *app, o doctorOptions) error {
	if a.timeout < 0 {
		return usage("--timeout %v: want a positive duration", a.timeout)
	}
	h := o.readHost(a.credentials())
	h.cfg.StateDir = o.stateDir
	h = h.with(h.cfg)
	if err := bridge.CheckDirs(o.search); err != nil {
		return usage("%w", err)
	}
	d := &doctor.Doctor{}
	if !manifest.HasErrors(h.diags) { // a configuration with errors is not used
		var err error
		if d, err = checkHost(ctx, h, o.only); err != nil {
			return err
		}
	}
	d.Diagnostics = slices.Concat(h.diags, d.Diagnostics)
	if o.runtime {
		if err := tryHost(ctx, a, d); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return printDoctor(a, d)
}

// checkHost makes all checks that start nothing.
func checkHost(ctx context.Context, h localHost, only []string) (*doctor.Doctor, error) {
	report := h.scan(ctx)
	if !h.settings().Enabled {
		report.Diagnostics = append(report.Diagnostics, manifest.Diagnostic{Level: manifest.Info, Path: h.path,
			Key: "extensions.enabled", Message: "is false: this host runs no extensions"})
	}
	var known []string
	for _, c := range report.Candidates {
		known = append(known, c.Manifest.Plugin.ID)
	}
	for _, id := range only {
		if err := checkLocalID(id); err != nil {
			return nil, err
		}
		if !slices.Contains(known, id) {
			return nil, h.notFound(id, known, report.InvalidCount)
		}
	}
	return doctor.Check(h.local, h.settings(), report, only), nil
}

// tryHost tests each extension. On a terminal, a line shows the progress.
func tryHost(ctx context.Context, a *app, d *doctor.Doctor) error {
	prefix, err := wire.ParsePrefix(a.nats.Prefix)
	if err != nil {
		return daemon.UsageError{Err: err}
	}
	o := doctor.Options{Prefix: prefix, Timeout: a.timeout, Connect: func(ctx context.Context) (*nats.Conn, error) {
		target, err := a.nats.Resolve()
		if err != nil {
			return nil, err
		}
		return target.Connect(ctx, daemon.ConnectOptions{Name: "extctl doctor", NoBuffer: true})
	}}
	if isScreen(a, a.stderr) {
		o.Progress = func(line string) {
			fmt.Fprint(a.stderr, "\r\x1b[K", terminal.Short(line, max(terminal.Width(a.stderr)-1, 10)))
		}
		defer o.Progress("")
	}
	d.Try(ctx, o)
	return nil
}

// printDoctor prints everything, and returns the exit code as an error.
func printDoctor(a *app, d *doctor.Doctor) error {
	out := doctorJSON{Results: list(d.Results), Diagnostics: list(d.Diagnostics)}
	for _, r := range d.Results {
		switch r.Outcome {
		case doctor.OK:
			out.Summary.OK++
		case doctor.Fail:
			out.Summary.Fail++
		case doctor.Skip:
			out.Summary.Skip++
		}
	}
	var err error
	if a.json {
		err = a.printJSON(out)
	} else {
		err = out.print(a)
	}
	if err == nil && (out.Summary.Fail > 0 || manifest.HasErrors(d.Diagnostics)) {
		return silentError(exitRuntimeCheck)
	}
	return err
}

func (out doctorJSON) print(a *app) error {
	printDiagnostics(a.stdout, out.Diagnostics)
	if len(out.Diagnostics) > 0 && len(out.Results) > 0 {
		fmt.Fprintln(a.stdout)
	}
	if len(out.Results) > 0 {
		t := a.newTable("ID", "TRANSPORT", "OUTCOME", "TIME", "DETAIL")
		for _, r := range out.Results {
			elapsed := ""
			if r.ElapsedMS > 0 {
				elapsed = fmt.Sprintf("%.0f ms", r.ElapsedMS)
			}
			t.Add(r.ID, r.Transport, r.Outcome, elapsed, terminal.Short(r.Error+r.Detail, 120))
		}
		if err := t.Print(a.stdout); err != nil {
			return err
		}
	}
	for _, r := range out.Results {
		if r.Outcome == doctor.Fail {
			printStderrTail(a, r)
		}
	}
	printTaken(a, out.Results)
	printStripped(a, out.Results)
	_, err := fmt.Fprintf(a.stdout, "\n%d ok, %d failed, %d skipped; %s, %s\n", out.Summary.OK, out.Summary.Fail, out.Summary.Skip,
		words.Plural(count(out.Diagnostics, manifest.Error), "error"), words.Plural(count(out.Diagnostics, manifest.Warn), "warning"))
	return err
}

// shownDetail is the length of an error that the table of a terminal shows; a longer one is repeated below it, because its
// advice is at its end.
const shownDetail = 40

// printStderrTail prints what does not fit into the table: a long error, the exit status and the last lines of stderr.
func printStderrTail(a *app, r doctor.Result) {
	if utf8.RuneCountInString(r.Error) > shownDetail {
		fmt.Fprintf(a.stdout, "\n%s: %s\n", r.ID, terminal.CleanLines(r.Error))
	}
	if len(r.Stderr) == 0 && r.ExitStatus == "" {
		return
	}
	fmt.Fprintf(a.stdout, "\n%s", r.ID)
	if r.ExitStatus != "" {
		fmt.Fprintf(a.stdout, " ended with %s", r.ExitStatus)
	}
	if len(r.Stderr) == 0 {
		fmt.Fprintln(a.stdout, " and wrote nothing to stderr")
		return
	}
	fmt.Fprintln(a.stdout, "; the last lines of its stderr:")
	for _, line := range r.Stderr {
		fmt.Fprintf(a.stdout, "    %s\n", terminal.Clean(line))
	}
}

// printTaken prints what manifests take from this host.
func printTaken(a *app, results []doctor.Result) {
	title := "\nTaken from this host:\n"
	for _, r := range results {
		if len(r.Takes) > 0 {
			fmt.Fprintf(a.stdout, "%s    %s: %s\n", title, r.ID, terminal.Clean(strings.Join(r.Takes, ", ")))
			title = ""
		}
	}
}

// printStripped prints the withheld variables, grouped: usually the same ones are withheld from every extension.
func printStripped(a *app, results []doctor.Result) {
	var order []string
	from := map[string][]string{}
	for _, r := range results {
		if names := strings.Join(r.StrippedEnv, ", "); names != "" {
			if from[names] == nil {
				order = append(order, names)
			}
			from[names] = append(from[names], r.ID)
		}
	}
	if len(order) == 0 {
		return
	}
	fmt.Fprintln(a.stdout, "\nVariables that look secret or reach services of this host, and that requires.env does not name, are withheld from:")
	for _, names := range order {
		fmt.Fprintf(a.stdout, "    %s: %s\n", strings.Join(from[names], ", "), terminal.Clean(names))
	}
}
