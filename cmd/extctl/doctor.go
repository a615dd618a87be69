package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// The outcomes of doctor.
const (
	outcomeOK   = "ok"
	outcomeFail = "fail"
	outcomeSkip = "skip" // gated: a bridge would not start it either
)

// doctorResult is doctor's result for an extension, or for a member of one.
type doctorResult struct {
	ID        string  `json:"id"`
	Transport string  `json:"transport"`
	Outcome   string  `json:"outcome"`
	ElapsedMS float64 `json:"elapsed_ms"` // of the runtime check
	Error     string  `json:"error"`
	Path      string  `json:"path"`
	needsJSON

	// Set by the runtime check.
	Detail     string   `json:"detail,omitempty"`
	ExitStatus string   `json:"exit_status,omitempty"`
	Stderr     []string `json:"stderr,omitempty"` // the last lines
}

// doctorJSON is the output of doctor.
type doctorJSON struct {
	header
	Results     []doctorResult        `json:"results"`
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
	d := &doctor{app: a, host: h, diags: h.diags}
	if !manifest.HasErrors(h.diags) { // a configuration with errors is not used
		if err := d.checkHost(ctx, o.only); err != nil {
			return err
		}
	}
	if o.runtime {
		if err := d.tryAll(ctx); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.print()
}

// doctor collects the results.
type doctor struct {
	*app
	host    localHost
	diags   []manifest.Diagnostic
	parts   []part
	results []doctorResult // of parts
}

// checkHost makes all checks that start nothing.
func (d *doctor) checkHost(ctx context.Context, only []string) error {
	report := d.host.scan(ctx)
	if !d.host.settings().Enabled {
		report.Diagnostics = append(report.Diagnostics, manifest.Diagnostic{Level: manifest.Info, Path: d.host.path,
			Key: "extensions.enabled", Message: "is false: this host runs no extensions"})
	}
	var known []string
	for _, c := range report.Candidates {
		id := c.Manifest.Plugin.ID
		known = append(known, id)
		if len(only) == 0 || slices.Contains(only, id) {
			d.parts = append(d.parts, d.host.parts(c)...)
		}
	}
	for _, id := range only {
		if err := checkLocalID(id); err != nil {
			return err
		}
		if !slices.Contains(known, id) {
			return d.host.notFound(id, known, report.InvalidCount)
		}
	}
	for _, f := range report.Diagnostics {
		if len(only) == 0 || slices.ContainsFunc(d.parts, func(p part) bool { return discovery.Within(p.Root, f.Path) }) {
			d.diags = append(d.diags, f)
		}
	}
	for _, p := range d.parts {
		d.results = append(d.results, p.result())
		if !p.Missing.OK() && p.Err == nil {
			d.warn(p, "requires", "%s", p.Missing)
		}
		d.checkCommand(p)
	}
	if len(only) == 0 {
		d.skills()
	}
	return nil
}

// checkCommand warns about a command that is not on $PATH and not in requires.bins: a bridge would not gate the
// extension, but start it again and again. The manifest's own checks cover a command given by its path.
func (d *doctor) checkCommand(p part) {
	t := p.Preflight.Transport
	_, own := t.Env["PATH"]
	if p.m.Transport.Type != manifest.Stdio || p.Err != nil || own || strings.ContainsAny(t.Command, `/\`) || slices.Contains(p.m.Requires.Bins, t.Command) {
		return
	}
	if _, err := exec.LookPath(t.Command); err != nil {
		key, more := "transport.command", ", and add it to requires.bins so that it is reported as missing"
		if filepath.Base(p.Path) == manifest.SidecarName {
			key, more = "command", ""
		}
		d.warn(p, key, "%q is not on $PATH: install it%s", t.Command, more)
	}
}

// warn adds a warning about an extension.
func (d *doctor) warn(p part, key, format string, args ...any) {
	d.diags = append(d.diags, manifest.Diagnostic{Level: manifest.Warn, Path: p.Path, Key: key,
		Message: p.m.Plugin.ID + ": " + fmt.Sprintf(format, args...)})
}

// skills checks this host's skills; doctor only reports their faults.
func (d *doctor) skills() {
	dir := d.host.settings().SkillsDir
	if dir == "" {
		return
	}
	skills, diags := discovery.ScanSkills(dir)
	d.diags = append(d.diags, diags...)
	for _, s := range skills {
		if missing := (gate.Host{}).Check(s.Requires, filepath.Dir(s.Path), nil); !missing.OK() {
			d.diags = append(d.diags, manifest.Diagnostic{Level: manifest.Warn, Path: s.Path, Key: "requires",
				Message: "the skill is not published: " + missing.String()})
		}
	}
}

func (p part) result() doctorResult {
	r := doctorResult{
		ID: p.m.Plugin.ID, Transport: string(p.m.Transport.Type), Outcome: outcomeOK, Path: p.Path,
		needsJSON: p.needs(),
	}
	switch {
	case p.Err != nil:
		r.Outcome, r.Error = outcomeFail, p.Err.Error()
	case p.Gated:
		r.Outcome, r.Error = outcomeSkip, p.Missing.String()
	}
	return r
}

// print prints everything, and returns the exit code as an error.
func (d *doctor) print() error {
	out := doctorJSON{Results: list(d.results), Diagnostics: list(d.diags)}
	for _, r := range d.results {
		switch r.Outcome {
		case outcomeOK:
			out.Summary.OK++
		case outcomeFail:
			out.Summary.Fail++
		case outcomeSkip:
			out.Summary.Skip++
		}
	}
	var err error
	if d.json {
		err = d.printJSON(out)
	} else {
		err = d.printText(out)
	}
	if err == nil && (out.Summary.Fail > 0 || manifest.HasErrors(d.diags)) {
		return silentError(exitRuntimeCheck)
	}
	return err
}

func (d *doctor) printText(out doctorJSON) error {
	printDiagnostics(d.stdout, out.Diagnostics)
	if len(out.Diagnostics) > 0 && len(out.Results) > 0 {
		fmt.Fprintln(d.stdout)
	}
	if len(out.Results) > 0 {
		t := d.newTable("ID", "TRANSPORT", "OUTCOME", "TIME", "DETAIL")
		for _, r := range out.Results {
			elapsed := ""
			if r.ElapsedMS > 0 {
				elapsed = fmt.Sprintf("%.0f ms", r.ElapsedMS)
			}
			t.Add(r.ID, r.Transport, r.Outcome, elapsed, terminal.Short(r.Error+r.Detail, 120))
		}
		if err := t.Print(d.stdout); err != nil {
			return err
		}
	}
	for _, r := range out.Results {
		if r.Outcome == outcomeFail {
			d.printStderrTail(r)
		}
	}
	d.printTaken(out.Results)
	d.printStripped(out.Results)
	_, err := fmt.Fprintf(d.stdout, "\n%d ok, %d failed, %d skipped; %s, %s\n", out.Summary.OK, out.Summary.Fail, out.Summary.Skip,
		words.Plural(errorsIn(out.Diagnostics), "error"), words.Plural(warningsIn(out.Diagnostics), "warning"))
	return err
}

// shownDetail is the length of an error that the table of a terminal shows; a longer one is repeated below it, because its
// advice is at its end.
const shownDetail = 40

// printStderrTail prints what does not fit into the table: a long error, the exit status and the last lines of stderr.
func (d *doctor) printStderrTail(r doctorResult) {
	if utf8.RuneCountInString(r.Error) > shownDetail {
		fmt.Fprintf(d.stdout, "\n%s: %s\n", r.ID, terminal.CleanLines(r.Error))
	}
	if len(r.Stderr) == 0 && r.ExitStatus == "" {
		return
	}
	fmt.Fprintf(d.stdout, "\n%s", r.ID)
	if r.ExitStatus != "" {
		fmt.Fprintf(d.stdout, " ended with %s", r.ExitStatus)
	}
	if len(r.Stderr) == 0 {
		fmt.Fprintln(d.stdout, " and wrote nothing to stderr")
		return
	}
	fmt.Fprintln(d.stdout, "; the last lines of its stderr:")
	for _, line := range r.Stderr {
		fmt.Fprintf(d.stdout, "    %s\n", terminal.Clean(line))
	}
}

// printTaken prints what manifests take from this host.
func (d *doctor) printTaken(results []doctorResult) {
	title := "\nTaken from this host:\n"
	for _, r := range results {
		if len(r.Takes) > 0 {
			fmt.Fprintf(d.stdout, "%s    %s: %s\n", title, r.ID, terminal.Clean(strings.Join(r.Takes, ", ")))
			title = ""
		}
	}
}

// printStripped prints the withheld variables, grouped: usually the same ones are withheld from every extension.
func (d *doctor) printStripped(results []doctorResult) {
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
	fmt.Fprintln(d.stdout, "\nVariables that look secret or reach services of this host, and that requires.env does not name, are withheld from:")
	for _, names := range order {
		fmt.Fprintf(d.stdout, "    %s: %s\n", strings.Join(from[names], ", "), terminal.Clean(names))
	}
}

func warningsIn(diags []manifest.Diagnostic) (n int) {
	for _, d := range diags {
		if d.Level == manifest.Warn {
			n++
		}
	}
	return n
}
