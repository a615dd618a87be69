// Package discovery finds the extensions and skills of one host: it walks directories for plugin.toml and SKILL.md
// and has [manifest] read them. It starts nothing and checks no requirement; that is the gate's and the bridge's.
//
//	report := discovery.Scan(ctx, discovery.Options{Roots: []string{"./extensions"}, IgnoreDirs: []string{"node_modules"}})
//	for _, d := range report.Diagnostics {
//		fmt.Fprintln(os.Stderr, d) // ./extensions/weather/plugin.toml:2:6: error: plugin.id: …
//	}
//	for _, c := range report.Candidates {
//		fmt.Println(c.Manifest.Plugin.ID, c.Root)
//	}
//
// A scan has no error: a directory or a file that is of no use is a diagnostic, all of them come together, and what
// is left of the host still runs. The same files give the same report, in the same order.
//
// The steps, in this order: roots made canonical, walked to MaxDepth, manifests parsed with their sidecars, those
// that lie within another candidate dropped, then all but the first of an id, then the disabled, then those that are
// not in the allowlist. The order shows: a disabled extension still hides the extensions within it, and of two with
// one id the first is taken before anybody asks whether it is disabled.
//
// [Watch] tells when a scan would come out differently.
package discovery

import (
	"cmp"
	"context"
	"slices"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// Options say where to look and what to leave out. The zero value looks nowhere.
type Options struct {
	// Roots are the directories to walk; where two have an extension of one id, the earlier root's is used. They
	// may be relative to the working directory, and may be symbolic links, whatever FollowLinks says.
	Roots []string
	// Links are further roots, after Roots: what extctl install --link recorded.
	Links []string
	// IgnoreDirs are names of directories that are not entered, such as node_modules.
	IgnoreDirs []string
	// MaxDepth is how many directories there may be from a root to a manifest, the root included: 4 finds
	// root/a/b/c/plugin.toml. 0 means DefaultMaxDepth.
	MaxDepth int
	// FollowLinks follows symbolic links that stay within their root. Otherwise they are skipped with an Info.
	FollowLinks bool

	// Disabled are ids that are left out.
	Disabled []string
	// Allowlist are the only ids that are kept; empty means all.
	Allowlist []string

	// Manifest is handed to manifest.Parse; its Sidecar and Program are set by Scan.
	Manifest manifest.Options
}

// DefaultMaxDepth is the MaxDepth of options that say none.
const DefaultMaxDepth = 4

// Report is what a scan found.
type Report struct {
	Candidates []Candidate // sorted by RootIndex, then id
	Shadowed   []Candidate // left out because an earlier one has their id; by RootIndex, then path
	// Diagnostics are in the order of the steps, within a step by root and path.
	Diagnostics []manifest.Diagnostic

	ScannedDirs   int // directories read
	DisabledCount int // candidates left out because of Options.Disabled
	InvalidCount  int // manifests refused: an Error diagnostic has the path of each

	// Incomplete is true when the scan was cut short, by its context or a limit, or when a directory could not be
	// read though it is there. A candidate that is missing from such a report need not be gone.
	Incomplete bool
}

// Candidate is an extension that may be run, if its requirements are met.
type Candidate struct {
	// Manifest is valid. Its Hash changes with the manifest and with the sidecar that supplied its servers.
	Manifest  *manifest.Manifest
	Root      string // the extension's directory, canonical: absolute and free of symbolic links
	Path      string // its plugin.toml, in Root
	RootIndex int    // of the root it was found in: the index in Roots, or len(Roots) + the index in Links
}

// Scan looks for extensions. It reads at most MaxEntries directory entries and opens nothing but directories and
// regular files, so that neither a huge tree nor a pipe named plugin.toml can hold it up.
func Scan(ctx context.Context, opt Options) Report {
	w := newWalker(opt.IgnoreDirs, opt.MaxDepth, opt.FollowLinks)
	w.walk(ctx, canonical(opt.Roots, opt.Links, &w.findings))

	s := scan{findings: w.findings, invalid: w.refused}
	s.parse(ctx, w.places, opt.Manifest)
	s.pruneNested()
	s.dedupe()
	s.disable(opt.Disabled)
	s.allow(opt.Allowlist)
	slices.SortFunc(s.candidates, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(a.RootIndex, b.RootIndex), cmp.Compare(a.Manifest.Plugin.ID, b.Manifest.Plugin.ID))
	})
	return Report{
		Candidates: s.candidates, Shadowed: s.shadowed, Diagnostics: s.diags,
		ScannedDirs: w.scanned, DisabledCount: s.disabled, InvalidCount: s.invalid,
		Incomplete: s.incomplete,
	}
}
