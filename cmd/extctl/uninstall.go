package main

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/copytree"
	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// uninstallJSON is the output of uninstall.
type uninstallJSON struct {
	header
	ID      string `json:"id"`
	Version string `json:"version"`
	Action  string `json:"action"` // removed, or unlinked (the link's target still exists)
	Path    string `json:"path"`   // the removed directory, or the link's target
	Next    string `json:"next"`   // the manifest with the same id that is used now
}

func uninstallCmd(a *app) *cobra.Command {
	var f hostFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "uninstall ID --yes",
		Short: "Remove an extension from this host",
		Long: `Remove the directory of the extension ID. If it is a link, only the link is removed, never its target.

The extension's stored data (EXTMESH_STATE_DIR) is kept.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runUninstall(cmd.Context(), a, f, args[0], yes)
		},
		ValidArgsFunction: f.completeLocal,
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "remove it; without this flag, only print what would be removed")
	return cmd
}

func runUninstall(ctx context.Context, a *app, f hostFlags, id string, yes bool) error {
	if err := checkLocalID(id); err != nil {
		return err
	}
	h, err := a.load(f)
	if err != nil {
		return err
	}
	u, err := h.planRemoval(ctx, id)
	if err = cmp.Or(err, ctx.Err()); err != nil { // an interrupted search has not found everything
		return err
	}
	if !yes {
		return fail(exitNeedsYes, "this would %s", u).
			with("to do that: extctl uninstall "+id+" --yes", map[string]any{"action": u.out.Action, "path": u.out.Path})
	}
	if err := u.do(ctx, h); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(u.out)
	}
	fmt.Fprintf(a.stdout, "%s %s: %s\n", u.out.Action, id, terminal.Clean(u.out.Path))
	if u.out.Next != "" {
		fmt.Fprintf(a.stderr, "%s now resolves to %s\n", id, terminal.Clean(u.out.Next))
	}
	fmt.Fprintln(a.stderr, "to apply this on running bridges: extctl reload, which prints where each of them looks for extensions")
	return nil
}

// removal is what uninstall will do: exactly one of link, symlink and dir is set.
type removal struct {
	out     uninstallJSON
	link    string // an entry of extensions.links
	symlink string
	dir     string
}

func (u removal) String() string {
	switch {
	case u.link != "":
		return fmt.Sprintf("remove %s from extensions.links and keep its files", u.link)
	case u.symlink != "":
		return fmt.Sprintf("remove the symbolic link %s and keep %s", u.symlink, u.out.Path)
	}
	return "remove " + u.dir + " and everything in it"
}

// planRemoval finds what makes id an extension of this host: a link, a symbolic link or a directory.
func (h localHost) planRemoval(ctx context.Context, id string) (removal, error) {
	c, others, err := h.find(ctx, id)
	if err != nil {
		if u, ok := h.unreadable(ctx, id); ok && exitCode(err) == exitNotFound {
			return u, nil
		}
		return removal{}, err
	}
	u := removal{out: uninstallJSON{ID: id, Version: c.Manifest.Plugin.Version, Action: "unlinked", Path: c.Root}}
	if len(others) > 0 {
		u.out.Next = others[0].Path
	}
	paths := h.settings().SearchPaths
	for _, link := range h.settings().Links { // a search path may contain its target
		if sameDir(link, c.Root) {
			if u.link = link; c.RootIndex < len(paths) {
				u.out.Next = c.Path
			}
			return u, nil
		}
	}
	if c.RootIndex >= len(paths) {
		u.link = h.settings().Links[c.RootIndex-len(paths)]
		return u, usage("%s is a subdirectory of the link %s; remove it by hand, or remove the link from extensions.links", c.Root, u.link)
	}
	if h.settings().FollowLinks { // otherwise the directory was found by itself, whatever leads to it
		if u.symlink = linkTo(paths[c.RootIndex], c); u.symlink != "" {
			return u, nil
		}
	}
	if u.dir = c.Root; sameDir(paths[c.RootIndex], c.Root) {
		return u, usage("%s is itself a search path; remove it from extensions.search_paths", c.Root)
	}
	if other := inside(c.Root, h.all(ctx)); other != "" {
		return u, usage("%s also contains the extension %s; remove %s by hand", c.Root, other, id)
	}
	u.out.Action = "removed"
	return u, nil
}

// unreadable finds what is named id and has no manifest that can be used: a link that discovery does not follow or that leads to
// nothing, or a directory with a manifest that is broken. What has an extension, with whatever id, is not unreadable.
func (h localHost) unreadable(ctx context.Context, id string) (removal, bool) {
	u := removal{out: uninstallJSON{ID: id, Action: "unlinked"}}
	report := h.all(ctx)
	for _, link := range h.settings().Links { // a search path may contain its target
		if filepath.Base(link) == id && !hasExtension(link, report) {
			u.link, u.out.Path = link, link
			return u, true
		}
	}
	for _, dir := range h.settings().SearchPaths {
		path := filepath.Join(dir, id)
		info, err := os.Lstat(path)
		switch {
		case err != nil || hasExtension(path, report) && (info.Mode()&fs.ModeSymlink == 0 || h.settings().FollowLinks):
			continue
		case info.Mode()&fs.ModeSymlink == 0:
			if isBroken(path, report) && !report.Incomplete && !h.configures(path) {
				u.dir, u.out.Path, u.out.Action = path, path, "removed"
				return u, true
			}
			continue
		}
		u.symlink = path
		u.out.Path, _ = os.Readlink(path) // for display only
		return u, true
	}
	return u, false
}

// configures reports whether a search path or the target of a link is a directory, or is in it.
func (h localHost) configures(dir string) bool {
	dir, err := canonical(dir)
	return err != nil || slices.ContainsFunc(slices.Concat(h.settings().SearchPaths, h.settings().Links), func(path string) bool {
		path, err := canonical(path)
		return err == nil && discovery.Within(dir, path)
	})
}

// hasExtension reports whether an extension is in the directory that path leads to, or is that directory.
func hasExtension(path string, report discovery.Report) bool {
	dir, err := canonical(path)
	return err == nil && slices.ContainsFunc(slices.Concat(report.Candidates, report.Shadowed), func(c discovery.Candidate) bool {
		return discovery.Within(dir, c.Root)
	})
}

// isBroken reports whether a directory has a manifest with errors.
func isBroken(dir string, report discovery.Report) bool {
	dir, err := canonical(dir)
	return err == nil && slices.ContainsFunc(report.Diagnostics, func(d manifest.Diagnostic) bool {
		isManifest := slices.Contains([]string{manifest.FileName, manifest.SidecarName}, filepath.Base(d.Path))
		return d.Level == manifest.Error && isManifest && sameDir(filepath.Dir(d.Path), dir)
	})
}

// linkTo is the symbolic link in the search path dir that leads to c, or "".
func linkTo(dir string, c discovery.Candidate) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.Type()&fs.ModeSymlink != 0 && sameDir(path, c.Root) {
			return path
		}
	}
	return ""
}

// sameDir reports whether path leads to the canonical directory dir.
func sameDir(path, dir string) bool {
	at, err := canonical(path)
	return err == nil && at == dir
}

func canonical(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

func (u removal) do(ctx context.Context, h localHost) error {
	var err error
	switch {
	case u.link != "":
		_, err := config.RemoveLink(ctx, h.path, u.link)
		return notWritten(ctx, err)
	case u.symlink != "":
		err = os.Remove(u.symlink)
	default:
		err = copytree.Remove(u.dir)
	}
	if err != nil {
		return fail(exitCopyFailed, "%w", err).with(inUse(u.out.ID), nil)
	}
	return nil
}
