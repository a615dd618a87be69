// Package discovery finds the extensions and skills of one host: it walks directories for plugin.toml, .mcp.json and
// SKILL.md files and parses them with [manifest]. It starts nothing and checks no requirements; packages gate and bridge do.
//
//	report := discovery.Scan(ctx, discovery.Options{Roots: []string{"./extensions"}, IgnoreDirs: []string{"node_modules"}})
//	for _, d := range report.Diagnostics {
//		fmt.Fprintln(os.Stderr, d) // ./extensions/weather/plugin.toml:2:6: error: plugin.id: …
//	}
//	for _, c := range report.Candidates {
//		fmt.Println(c.Manifest.Plugin.ID, c.Root)
//	}
//
// A scan returns no error: each unusable directory or file is a diagnostic, all are reported together, and the other
// extensions of the host still run. The same files give the same report in the same order.
//
// The steps are, in this order: make the roots canonical, walk them to MaxDepth, parse the manifests with their
// sidecars, drop candidates inside another candidate, drop all but the first of each id, drop the disabled ones, drop
// those not in the allowlist. The order has two consequences: a disabled extension still hides the extensions inside
// it, and of two with the same id the first is chosen even if that id is disabled.
//
// [Watch] reports changes that would change the result of a scan.
package discovery

import (
	"cmp"
	"context"
	"slices"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// Options configure a scan. The zero value scans nothing.
type Options struct {
	// Roots are the directories to walk. If two contain an extension with the same id, the one of the earlier root is
	// used. Roots may be relative to the working directory, and may be symbolic links even without FollowLinks.
	Roots []string
	// Links are further roots, after Roots: those that extctl install --link recorded.
	Links []string
	// IgnoreDirs are names of directories that are not entered, such as node_modules.
	IgnoreDirs []string
	// MaxDepth is the number of directories from a root to a manifest, including the root: 4 finds
	// root/a/b/c/plugin.toml. 0 means DefaultMaxDepth.
	MaxDepth int
	// FollowLinks follows symbolic links that stay within their root. Otherwise they are skipped with an Info.
	FollowLinks bool

	// Disabled are ids that are left out.
	Disabled []string
	// Allowlist are the only ids that are kept; empty means all.
	Allowlist []string

	// Manifest is passed to manifest.Parse; Scan sets its Sidecar and Program.
	Manifest manifest.Options
}

// DefaultMaxDepth is used if MaxDepth is 0.
const DefaultMaxDepth = 4

// Report is the result of a scan.
type Report struct {
	Candidates []Candidate // sorted by RootIndex, then id
	Shadowed   []Candidate // left out because an earlier one has the same id; by RootIndex, then path
	// Diagnostics are in the order of the steps, and within a step by root and path.
	Diagnostics []manifest.Diagnostic

	ScannedDirs   int // directories read
	DisabledCount int // candidates left out because of Options.Disabled
	InvalidCount  int // manifests refused: each has an Error diagnostic with its path

	// Incomplete is true if the context or a limit interrupted the scan, or if an existing directory could not be
	// read. A candidate that is missing from such a report may still exist.
	Incomplete bool
}

// Candidate is an extension that may be run if its requirements are met.
type Candidate struct {
	Manifest  *manifest.Manifest // valid
	Root      string             // the extension's directory, canonical: absolute and free of symbolic links
	Path      string             // its plugin.toml, or its .mcp.json if it has no plugin.toml, in Root
	RootIndex int                // of the root that contains it: the index in Roots, or len(Roots) + the index in Links
}

// Scan finds extensions. It reads at most MaxEntries directory entries and opens only directories and regular files,
// so that neither a huge tree nor a pipe named plugin.toml can block it.
func Scan(ctx context.Context, opt Options) Report {
	w := newWalker(opt.IgnoreDirs, opt.MaxDepth, opt.FollowLinks)
	w.walk(ctx, canonical(opt.Roots, opt.Links, &w.findings))

	s := scan{findings: w.findings, invalid: w.refused}
	s.parse(ctx, w.locations, opt.Manifest)
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
