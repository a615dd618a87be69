package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/doctor"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// candidateJSON is one extension in the output of discover. Missing programs and variables include its members'.
type candidateJSON struct {
	ID          string   `json:"id"`
	Version     string   `json:"version"`
	Path        string   `json:"path"`
	Transport   string   `json:"transport"` // "" if it only contains members
	RootIndex   int      `json:"root_index"`
	MissingBins []string `json:"missing_bins"`
	MissingEnv  []string `json:"missing_env"`
	Refused     []string `json:"refused"`
	Members     []string `json:"members"`
}

// discoverJSON is the output of discover.
type discoverJSON struct {
	header
	Candidates    []candidateJSON       `json:"candidates"`
	Diagnostics   []manifest.Diagnostic `json:"diagnostics"`
	ScannedDirs   int                   `json:"scanned_dirs"`
	DisabledCount int                   `json:"disabled_count"`
	InvalidCount  int                   `json:"invalid_count"`
}

func discoverCmd(a *app) *cobra.Command {
	var f hostFlags
	cmd := &cobra.Command{
		Use:   "discover [DIR…]",
		Short: "List the extensions on this host without starting any",
		Long: `Find extensions as a bridge on this host would, without starting any: in each DIR, otherwise in the
search_paths of extensions.yaml, otherwise in ./extensions.

The output includes every fault of every manifest, and what an extension requires and this host lacks.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.search = append(f.search, args...)
			return runDiscover(cmd.Context(), a, f)
		},
	}
	f.add(cmd)
	return cmd
}

func runDiscover(ctx context.Context, a *app, f hostFlags) error {
	h, err := a.load(f)
	if err != nil {
		return err
	}
	report := h.scan(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	out := discoverJSON{
		Candidates: []candidateJSON{}, Diagnostics: slices.Concat(h.diags, report.Diagnostics),
		ScannedDirs: report.ScannedDirs, DisabledCount: report.DisabledCount, InvalidCount: report.InvalidCount,
	}
	for _, c := range report.Candidates {
		out.Candidates = append(out.Candidates, h.candidate(c))
	}
	if a.json {
		out.Diagnostics = list(out.Diagnostics)
		return a.printJSON(out)
	}
	out.Diagnostics = report.Diagnostics // load has printed the configuration's diagnostics
	if !h.settings().Enabled {
		fmt.Fprintf(a.stderr, "extensions.enabled is false in %s: this host runs no extensions\n", h.path)
	}
	return printCandidates(a, out)
}

func (h localHost) candidate(c discovery.Candidate) candidateJSON {
	p := c.Manifest.Plugin
	out := candidateJSON{
		ID: p.ID, Version: p.Version, Path: c.Path, Transport: string(c.Manifest.Transport.Type), RootIndex: c.RootIndex,
		MissingBins: []string{}, MissingEnv: []string{}, Refused: []string{}, Members: []string{},
	}
	for _, part := range doctor.PartsOf(h.local, c) {
		out.MissingBins = append(out.MissingBins, part.Missing.MissingBins...)
		out.MissingEnv = append(out.MissingEnv, part.Missing.MissingEnv...)
		out.Refused = append(out.Refused, part.Needs().Refused...)
		if part.Own.Parent != "" {
			out.Members = append(out.Members, part.Own.Plugin.ID)
		}
	}
	for _, names := range []*[]string{&out.MissingBins, &out.MissingEnv, &out.Refused} {
		slices.Sort(*names)
		*names = slices.Compact(*names)
	}
	return out
}

func printCandidates(a *app, out discoverJSON) error {
	t := a.newTable("ID", "VERSION", "TRANSPORT", "MISSING", "PATH")
	for _, c := range out.Candidates {
		transport := c.Transport
		if transport == "" {
			transport = words.Plural(len(c.Members), "member")
		}
		t.Add(c.ID, c.Version, transport, strings.Join(slices.Concat(c.MissingBins, c.MissingEnv, c.Refused), ", "), c.Path)
	}
	if err := t.Print(a.stdout); err != nil {
		return err
	}
	printDiagnostics(a.stderr, out.Diagnostics)
	fmt.Fprintf(a.stderr, "%s, %d disabled, %s; directories read: %d\n",
		words.Plural(len(out.Candidates), "extension"), out.DisabledCount, words.Plural(out.InvalidCount, "invalid manifest"), out.ScannedDirs)
	return nil
}
