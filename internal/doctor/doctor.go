// Package doctor checks the extensions of a host as a bridge on it would, and tries each.
package doctor

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// The outcomes of the checks.
const (
	OK   = "ok"
	Fail = "fail"
	Skip = "skip" // gated: a bridge would not start it either
)

// Result is the result for an extension, or for a member of one.
type Result struct {
	ID        string  `json:"id"`
	Transport string  `json:"transport"`
	Outcome   string  `json:"outcome"`
	ElapsedMS float64 `json:"elapsed_ms"` // of the runtime check
	Error     string  `json:"error"`
	Path      string  `json:"path"`
	Needs

	// Set by the runtime check.
	Detail     string   `json:"detail,omitempty"`
	ExitStatus string   `json:"exit_status,omitempty"`
	Stderr     []string `json:"stderr,omitempty"` // the last lines
}

// Part is what a bridge starts separately: an extension, or a member of one.
type Part struct {
	discovery.Candidate
	Own *manifest.Manifest // its own; Candidate has that of the extension
	bridge.Preflight
}

// Needs is what a part takes from this host, lacks, or must not get.
type Needs struct {
	MissingBins []string `json:"missing_bins"`
	MissingEnv  []string `json:"missing_env"`
	StrippedEnv []string `json:"stripped_env"` // names of variables that it does not receive
	Takes       []string `json:"takes"`        // variables, and files as file:PATH, that its manifest takes from the host
	Refused     []string `json:"refused"`      // the requested ones that it must not get
}

// Needs returns what the part takes, lacks and must not get.
func (p Part) Needs() Needs {
	needs := p.Own.Needs()
	takes := list(needs.Env)
	for _, path := range needs.Files {
		takes = append(takes, "file:"+path)
	}
	refused := append(list(p.Missing.NotGranted), p.Missing.Mesh...)
	return Needs{list(p.Missing.MissingBins), list(p.Missing.MissingEnv), list(p.Stripped), takes, refused}
}

// PartsOf are the parts of c that a bridge would start, each with the result of its checks.
func PartsOf(local bridge.Local, c discovery.Candidate) []Part {
	var out []Part
	for _, m := range append([]*manifest.Manifest{c.Manifest}, c.Manifest.Members()...) {
		if !m.Container() {
			out = append(out, Part{c, m, local.Check(c, m)})
		}
	}
	return out
}

// Doctor has the results of the checks of one host.
type Doctor struct {
	Results     []Result
	Diagnostics []manifest.Diagnostic

	local    bridge.Local
	settings config.Config
	parts    []Part // of Results
}

// Check makes all checks that start nothing, of the extensions that report has found. If only is not empty, it names the
// extensions to check, with their members and findings.
func Check(local bridge.Local, settings config.Config, report discovery.Report, only []string) *Doctor {
	d := &Doctor{local: local, settings: settings}
	for _, c := range report.Candidates {
		if len(only) == 0 || slices.Contains(only, c.Manifest.Plugin.ID) {
			d.parts = append(d.parts, PartsOf(local, c)...)
		}
	}
	for _, f := range report.Diagnostics {
		if len(only) == 0 || slices.ContainsFunc(d.parts, func(p Part) bool { return discovery.Within(p.Root, f.Path) }) {
			d.Diagnostics = append(d.Diagnostics, f)
		}
	}
	for _, p := range d.parts {
		d.Results = append(d.Results, p.result())
		if !p.Missing.OK() && p.Err == nil {
			d.warn(p, "requires", "%s", p.Missing)
		}
		d.checkCommand(p)
	}
	if len(only) == 0 {
		d.skills()
	}
	return d
}

// checkCommand warns about a command that is not on $PATH and not in requires.bins: a bridge would not gate the
// extension, but start it again and again. The manifest's own checks cover a command given by its path.
func (d *Doctor) checkCommand(p Part) {
	t := p.Preflight.Transport
	_, own := t.Env["PATH"]
	if p.Own.Transport.Type != manifest.Stdio || p.Err != nil || own || t.Command == "" || p.Missing.Refused() || strings.ContainsAny(t.Command, `/\`) || slices.Contains(p.Own.Requires.Bins, t.Command) {
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
func (d *Doctor) warn(p Part, key, format string, args ...any) {
	d.Diagnostics = append(d.Diagnostics, manifest.Diagnostic{Level: manifest.Warn, Path: p.Path, Key: key,
		Message: p.Own.Plugin.ID + ": " + fmt.Sprintf(format, args...)})
}

// skills checks this host's skills; the check only reports their faults.
func (d *Doctor) skills() {
	dir := d.settings.SkillsDir
	if dir == "" {
		return
	}
	skills, diags := discovery.ScanSkills(dir)
	d.Diagnostics = append(d.Diagnostics, diags...)
	for _, s := range skills {
		if missing := (gate.Host{}).Check(s.Requires, filepath.Dir(s.Path), nil); !missing.OK() {
			d.Diagnostics = append(d.Diagnostics, manifest.Diagnostic{Level: manifest.Warn, Path: s.Path, Key: "requires",
				Message: "the skill is not published: " + missing.String()})
		}
	}
}

func (p Part) result() Result {
	r := Result{
		ID: p.Own.Plugin.ID, Transport: string(p.Own.Transport.Type), Outcome: OK, Path: p.Path,
		Needs: p.Needs(),
	}
	switch {
	case p.Err != nil:
		r.Outcome, r.Error = Fail, p.Err.Error()
	case p.Gated:
		r.Outcome, r.Error = Skip, p.Missing.String()
	}
	return r
}

// list copies names into a slice that JSON encodes as [], never as null.
func list[T any](names []T) []T { return append([]T{}, names...) }
