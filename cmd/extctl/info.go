package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/doctor"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// infoJSON is the output of info. It has the names of variables and headers, never their values, and URLs without the
// query.
type infoJSON struct {
	header
	ID           string        `json:"id"`
	Version      string        `json:"version"`
	Name         string        `json:"name"`
	Description  string        `json:"description"`
	Path         string        `json:"path"`
	RootIndex    int           `json:"root_index"`
	ManifestHash string        `json:"manifest_hash"`
	Enabled      bool          `json:"enabled"`
	Gating       config.Gating `json:"gating"`
	Priority     int32         `json:"priority"`
	Capabilities struct {
		Tools     []string `json:"tools"`
		Hooks     []string `json:"hooks"`
		Channels  []string `json:"channels"`
		Providers []string `json:"providers"`
	} `json:"capabilities"`
	Requires struct {
		Bins []string `json:"bins"`
		Env  []string `json:"env"`
	} `json:"requires"`
	Parts   []partJSON `json:"parts"`
	Shadows []string   `json:"shadows"` // paths of manifests with the same id that are not used
}

// partJSON is what a bridge starts separately: the extension itself, and each of its members.
type partJSON struct {
	ID        string   `json:"id"`
	Transport string   `json:"transport"`
	Dialect   string   `json:"dialect"`
	Command   []string `json:"command"`
	URL       string   `json:"url"`
	Subject   string   `json:"subject_prefix"`
	Env       []string `json:"env"`
	Headers   []string `json:"headers"`
	doctor.Needs
	Error string `json:"error"`
}

func infoCmd(a *app) *cobra.Command {
	var f hostFlags
	cmd := &cobra.Command{
		Use:   "info ID",
		Short: "Show an extension of this host: its path, its command, what it lacks",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runInfo(cmd.Context(), a, f, args[0])
		},
		ValidArgsFunction: f.completeLocal,
	}
	f.add(cmd)
	return cmd
}

func runInfo(ctx context.Context, a *app, f hostFlags, id string) error {
	h, err := a.load(f)
	if err != nil {
		return err
	}
	c, others, err := h.find(ctx, id)
	if err != nil {
		return err
	}
	s, m := h.settings(), c.Manifest
	out := infoJSON{
		ID: id, Version: m.Plugin.Version, Name: m.Plugin.Name, Description: m.Plugin.Description, Path: c.Path,
		RootIndex: c.RootIndex, ManifestHash: m.Hash, Enabled: enabled(s, id), Gating: s.GatingFor(id), Priority: m.Plugin.Priority,
		Parts: []partJSON{}, Shadows: []string{},
	}
	out.Capabilities.Tools, out.Capabilities.Hooks = list(m.Capabilities.Tools), list(m.Capabilities.Hooks)
	out.Capabilities.Channels, out.Capabilities.Providers = list(m.Capabilities.Channels), list(m.Capabilities.Providers)
	out.Requires.Bins, out.Requires.Env = list(m.Requires.Bins), list(m.Requires.Env)
	for _, p := range doctor.PartsOf(h.local, c) {
		out.Parts = append(out.Parts, partOf(p))
	}
	for _, o := range others {
		out.Shadows = append(out.Shadows, o.Path)
	}
	if a.json {
		return a.printJSON(out)
	}
	return printInfo(a, out)
}

// enabled reports whether the configuration enables the extension id.
func enabled(s config.Config, id string) bool {
	return s.Enabled && !slices.Contains(s.Disabled, id) && (len(s.Allowlist) == 0 || slices.Contains(s.Allowlist, id))
}

func partOf(p doctor.Part) partJSON {
	t := p.Own.Transport // as written in the manifest: placeholders are not expanded, because values may be secret
	out := partJSON{
		ID: p.Own.Plugin.ID, Transport: string(t.Type), Dialect: string(t.Dialect), Command: []string{}, URL: withoutQuery(t.URL),
		Subject: t.SubjectPrefix, Env: slices.Sorted(maps.Keys(t.Env)), Headers: slices.Sorted(maps.Keys(t.Headers)),
		Needs: p.Needs(),
	}
	out.Env, out.Headers = list(out.Env), list(out.Headers)
	if t.Type == manifest.Stdio {
		out.Command = append([]string{t.Command}, t.Args...)
	}
	if p.Err != nil {
		out.Error = p.Err.Error()
	}
	return out
}

// withoutQuery removes the parts of a URL that often contain secrets: the query and the password.
func withoutQuery(s string) string {
	s, _, _ = strings.Cut(s, "?")
	if u, err := url.Parse(s); err == nil && u.User != nil {
		return u.Redacted()
	}
	return s
}

func printInfo(a *app, o infoJSON) error {
	w := bufio.NewWriter(a.stdout)
	line := func(name, value string) {
		if value = terminal.Clean(value); value != "" {
			fmt.Fprintf(w, "%-12s %s\n", name+":", value)
		}
	}
	line("Id", o.ID)
	line("Name", o.Name)
	line("Version", o.Version)
	line("Description", o.Description)
	line("Path", o.Path)
	line("Enabled", map[bool]string{true: "yes", false: "no"}[o.Enabled])
	line("Tools", strings.Join(o.Capabilities.Tools, ", "))
	line("Hooks", strings.Join(o.Capabilities.Hooks, ", "))
	line("Channels", strings.Join(o.Capabilities.Channels, ", "))
	line("Providers", strings.Join(o.Capabilities.Providers, ", "))
	line("Requires", strings.Join(slices.Concat(o.Requires.Bins, o.Requires.Env), ", "))
	for _, path := range o.Shadows {
		line("Not used", filepath.Dir(path)+" has the same id")
	}
	for _, p := range o.Parts {
		fmt.Fprintln(w)
		if p.ID != o.ID {
			line("Member", p.ID)
		}
		line("Transport", strings.TrimSuffix(p.Transport+", "+p.Dialect, ", "))
		line("Command", strings.Join(p.Command, " "))
		line("URL", p.URL)
		line("Subject", p.Subject)
		line("Sets", strings.Join(p.Env, ", "))
		line("Headers", strings.Join(p.Headers, ", "))
		line("Takes", strings.Join(p.Takes, ", "))
		line("Refused", strings.Join(p.Refused, ", "))
		line("Missing", strings.Join(slices.Concat(p.MissingBins, p.MissingEnv), ", "))
		line("Withheld", strings.Join(p.StrippedEnv, ", "))
		line("Error", p.Error)
	}
	return w.Flush()
}
