package main

import (
	"cmp"
	"context"
	"errors"
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

// planRemoval finds what makes id an extension of this host: a link, a symbolic link or a directory. A directory is removed only
// if an extension is found in it: whatever else has this name belongs to the user.
func (h localHost) planRemoval(ctx context.Context, id string) (removal, error) {
	c, others, err := h.find(ctx, id)
	if err != nil {
		return h.planUnlink(ctx, id, err)
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
	if !h.isDirect(ctx, c) {
		if u.symlink = linkTo(paths[c.RootIndex], c); u.symlink == "" {
			return u, usage("%s is found through a symbolic link; remove that link by hand", c.Root)
		}
		return u, nil
	}
	if h.configures(c.Root) {
		return u, usage("%s is, or contains, a search path or the target of a link; remove it from extensions.yaml", c.Root)
	}
	if other := inside(c.Root, h.all(ctx)); other != "" {
		return u, usage("%s also contains the extension %s; remove %s by hand", c.Root, other, id)
	}
	u.dir, u.out.Action = c.Root, "removed"
	return u, nil
}

// planUnlink finds the entry of extensions.links that is named id and leads to nothing. notFound is the error without one.
func (h localHost) planUnlink(ctx context.Context, id string, notFound error) (removal, error) {
	for _, link := range h.settings().Links {
		if _, err := os.Stat(link); filepath.Base(link) == id && errors.Is(err, fs.ErrNotExist) {
			return removal{link: link, out: uninstallJSON{ID: id, Action: "unlinked", Path: link}}, nil
		}
	}
	if dir := brokenDir(id, h.all(ctx)); dir != "" {
		return removal{}, fail(exitNotFound, "%s has a manifest with errors, so that its id is not certain; correct it, or remove the directory or its link by hand", dir)
	}
	return removal{}, notFound
}

// brokenDir is the directory named id whose manifest has errors, or "".
func brokenDir(id string, report discovery.Report) string {
	for _, d := range report.Diagnostics {
		dir, file := filepath.Split(d.Path)
		isManifest := file == manifest.FileName || file == manifest.SidecarName
		if d.Level == manifest.Error && isManifest && filepath.Base(dir) == id {
			return filepath.Clean(dir)
		}
	}
	return ""
}

// isDirect reports whether the extension is found without following symbolic links.
func (h localHost) isDirect(ctx context.Context, c discovery.Candidate) bool {
	if !h.settings().FollowLinks {
		return true
	}
	cfg := h.cfg
	cfg.Settings.FollowLinks = false
	report := h.with(cfg).all(ctx)
	return slices.ContainsFunc(slices.Concat(report.Candidates, report.Shadowed), func(other discovery.Candidate) bool {
		return other.Root == c.Root
	})
}

// configures reports whether a search path or the target of a link is a directory, or is in it.
func (h localHost) configures(dir string) bool {
	dir, err := canonical(dir)
	return err != nil || slices.ContainsFunc(slices.Concat(h.settings().SearchPaths, h.settings().Links), func(path string) bool {
		path, err := canonical(path)
		return err == nil && discovery.Within(dir, path)
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
