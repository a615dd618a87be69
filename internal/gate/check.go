package gate

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// The limits of Result.String, which becomes a reason in the catalog: a manifest can contain 100,000 names.
const (
	maxListed = 16 // names of a kind
	maxShown  = 96 // bytes of a name, or of a file's path
)

// Host is where requirements are looked up. The zero value uses PATH and the environment of this process. For another
// environment, set both functions.
type Host struct {
	// LookPath finds a program by name on $PATH, or checks that a path names one, as exec.LookPath does
	// (executable; on Windows with the extensions of PATHEXT, .exe among them). Nil: exec.LookPath.
	LookPath func(file string) (string, error)
	// LookupEnv returns a variable and whether it is set. Nil: os.LookupEnv.
	LookupEnv func(name string) (string, bool)
	// Grants are what the operator allows the extension that CheckManifest checks.
	Grants Grants
}

// Result lists the requirements of an extension or a skill that the host lacks or refuses; it is zero if all are met.
// The lists are sorted and without duplicates.
type Result struct {
	MissingBins []string
	MissingEnv  []string

	NotGranted []string // variables, and files as file:PATH, that the operator has not granted
	Mesh       []string // likewise, what contains the mesh's own credentials
}

// Check looks up the requirements. Each program in bins must be on $PATH and executable; one with a path separator is
// not looked up on $PATH but resolved against root, the extension's directory. Each variable in env must be set and
// non-empty. unset lists variables of placeholders that are already known to be missing (manifest.Manifest.Resolve and
// Variables); it is nil for a skill.
//
// A program that is found only in a relative directory on $PATH counts as missing, since it is started in another
// working directory.
func (h Host) Check(requires manifest.Requires, root string, unset []string) Result {
	if h.LookPath == nil {
		h.LookPath = exec.LookPath
	}
	if h.LookupEnv == nil {
		h.LookupEnv = os.LookupEnv
	}
	var r Result
	for _, bin := range requires.Bins {
		file := bin
		if isPath(bin) && !filepath.IsAbs(bin) {
			file = filepath.Join(root, bin)
			if !isPath(file) {
				file = "." + string(filepath.Separator) + file // Join has cleaned ./x to x, which is a name
			}
		}
		if _, err := h.LookPath(file); err != nil {
			r.MissingBins = append(r.MissingBins, bin)
		}
	}
	for _, name := range requires.Env {
		if v, _ := h.LookupEnv(name); v == "" {
			r.MissingEnv = append(r.MissingEnv, name)
		}
	}
	r.MissingEnv = append(r.MissingEnv, unset...)
	r.MissingBins, r.MissingEnv = sorted(r.MissingBins), sorted(r.MissingEnv)
	return r
}

// isPath reports whether bin is a path rather than a name to look up on $PATH.
func isPath(bin string) bool {
	return strings.ContainsRune(bin, '/') || strings.ContainsRune(bin, filepath.Separator)
}

func sorted(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// OK reports whether nothing is missing or refused.
func (r Result) OK() bool { return len(r.MissingBins)+len(r.MissingEnv) == 0 && !r.Refused() }

// Refused reports whether the extension requires something that it must not get. It is not started then, whatever the
// value of gating.
func (r Result) Refused() bool { return len(r.NotGranted)+len(r.Mesh) > 0 }

// String describes what is missing or refused, as in "missing bins: jq, node; requires API_TOKEN, not granted: …"; it
// is "" if nothing is. It lists at most 16 names of a kind and the number of the others.
func (r Result) String() string {
	var parts []string
	if len(r.MissingBins) > 0 {
		parts = append(parts, "missing bins: "+list(r.MissingBins))
	}
	if len(r.MissingEnv) > 0 {
		parts = append(parts, "missing env: "+list(r.MissingEnv))
	}
	if len(r.NotGranted) > 0 {
		parts = append(parts, "requires "+list(r.NotGranted)+", not granted: to grant it, list it in extensions.yaml under secrets of the extension's entry")
	}
	if len(r.Mesh) > 0 {
		parts = append(parts, "requires "+list(r.Mesh)+", which contains credentials of the mesh itself and is never passed on: give the extension credentials of its own")
	}
	return strings.Join(parts, "; ")
}

func list(names []string) string {
	shown := slices.Clone(names)
	for i, name := range shown[:min(len(shown), maxListed)] {
		shown[i] = words.Clip(name, maxShown)
	}
	return words.Some(shown, maxListed)
}

// LogSkipped warns that an extension is not started (gating: skip). Operators alert on the text and on the
// fields extension, missing_bins, missing_env and refused: do not change them.
func LogSkipped(log *slog.Logger, extension string, r Result) {
	refused := append(append([]string{}, r.NotGranted...), r.Mesh...)
	log.Warn("extension skipped: declared preconditions not satisfied", append(r.attrs("extension", extension), "refused", refused)...)
}

// LogContinuing warns that an extension is started although something is missing (gating: warn). Operators
// alert on the text and on the fields extension, missing_bins and missing_env: do not change them.
func LogContinuing(log *slog.Logger, extension string, r Result) {
	log.Warn("extension preflight: declared requires not satisfied (continuing anyway)",
		r.attrs("extension", extension)...)
}

// LogSkillDisabled warns that a skill is not published. The text is "skill disabled: " and what is missing. Operators
// alert on that prefix and on the fields skill (the directory's name), missing_bins and missing_env.
func LogSkillDisabled(log *slog.Logger, skill string, r Result) {
	log.Warn("skill disabled: "+r.String(), r.attrs("skill", skill)...)
}

// attrs returns empty lists rather than null where nothing is missing, so that a query need not handle both.
func (r Result) attrs(key, id string) []any {
	return []any{key, id,
		"missing_bins", append([]string{}, r.MissingBins...), "missing_env", append([]string{}, r.MissingEnv...)}
}
