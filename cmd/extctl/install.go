package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/copytree"
	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/doctor"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// installOptions are the flags of install.
type installOptions struct {
	hostFlags
	update, enable, dryRun, link bool
}

// installJSON is the output of install.
type installJSON struct {
	header
	ID       string   `json:"id"`
	Version  string   `json:"version"`
	Action   string   `json:"action"`   // installed, updated, linked, or unchanged (already linked)
	Replaced string   `json:"replaced"` // the version before an update
	Path     string   `json:"path"`
	Enabled  bool     `json:"enabled"`
	DryRun   bool     `json:"dry_run"`
	Takes    []string `json:"takes"` // variables, and files as file:PATH, that its manifests request from the host
	Files    int      `json:"files"`
	Bytes    int64    `json:"bytes"`
}

func installCmd(a *app) *cobra.Command {
	var o installOptions
	cmd := &cobra.Command{
		Use:   "install PATH",
		Short: "Install an extension on this host, as a copy or with --link",
		Long: `Check the extension in the directory PATH and copy it, without .git, to <first search path>/<id>. The copy is
atomic: a failed install leaves nothing, and a failed update leaves the old version in place.

A symbolic link within the extension is copied as a link; one that is absolute or leads out of it is an error. With
--link nothing is copied; PATH is added to extensions.links in extensions.yaml.`,
		Example: "  extctl install ./weather\n  extctl install --update ./weather\n  extctl install --link ~/src/weather",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runInstall(cmd.Context(), a, o, args[0])
		},
	}
	o.add(cmd)
	cmd.Flags().BoolVar(&o.update, "update", false, "replace the extension if it is already installed")
	cmd.Flags().BoolVar(&o.enable, "enable", false, "enable it if extensions.yaml disables it")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "check everything and print what would be done")
	cmd.Flags().BoolVar(&o.link, "link", false, "run it from PATH instead of copying it")
	return cmd
}

func runInstall(ctx context.Context, a *app, o installOptions, path string) error {
	if o.update && o.link {
		return usage("--update and --link exclude each other: a linked extension is always the current content of PATH")
	}
	h, err := a.loadConfig(o.hostFlags)
	if err != nil {
		return err
	}
	in := &installation{app: a, host: h, installOptions: o}
	if err := in.open(ctx, path); err != nil {
		return err
	}
	in.installed = h.all(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	if o.link {
		err = in.linkIt(ctx, path)
	} else {
		err = in.copyIt(ctx)
	}
	if err != nil {
		return err
	}
	return in.finish(ctx)
}

// installation is one run of install.
type installation struct {
	*app
	installOptions
	host      localHost
	source    discovery.Candidate
	installed discovery.Report // the extensions of this host before the installation
	out       installJSON
}

func (in *installation) id() string { return in.source.Manifest.Plugin.ID }

// open finds the extension in the directory path and checks its manifest.
func (in *installation) open(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail(exitNotFound, "%s does not exist", path)
	case err != nil:
		return fail(exitNotFound, "%w", err)
	case !info.IsDir():
		return usage("%s is not a directory; want the directory with its %s or %s", path, manifest.FileName, manifest.SidecarName)
	}
	report := discovery.Scan(ctx, discovery.Options{Roots: []string{path}, MaxDepth: 1, Manifest: in.host.local.ManifestOptions()})
	report.Diagnostics = slices.DeleteFunc(report.Diagnostics, func(d manifest.Diagnostic) bool {
		return d.Level == manifest.Info // about links, which are checked below
	})
	if !in.json {
		printDiagnostics(in.stderr, report.Diagnostics)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case report.InvalidCount > 0:
		return fail(exitUsage, "the manifest in %s is not valid: it has %s", path, words.Plural(count(report.Diagnostics, manifest.Error), "error")).
			with("nothing was installed", map[string]any{"diagnostics": report.Diagnostics})
	case len(report.Candidates) == 0:
		return fail(exitNotFound, "there is no %s and no %s in %s", manifest.FileName, manifest.SidecarName, path)
	}
	in.source = report.Candidates[0]
	p := in.source.Manifest.Plugin
	in.out = installJSON{ID: p.ID, Version: p.Version, DryRun: in.dryRun}
	return nil
}

// same are the extensions of this host with the id of the new one.
func (in *installation) same() []discovery.Candidate {
	var out []discovery.Candidate
	for _, c := range slices.Concat(in.installed.Candidates, in.installed.Shadowed) {
		if c.Manifest.Plugin.ID == in.id() {
			out = append(out, c)
		}
	}
	return out
}

// linkIt adds the extension to extensions.links.
func (in *installation) linkIt(ctx context.Context, path string) error {
	in.out.Action, in.out.Path = "linked", in.source.Root
	if same := in.same(); len(same) > 0 {
		c := same[0]
		switch {
		case c.Root != in.source.Root:
			return in.collision(c)
		case c.RootIndex < len(in.host.settings().SearchPaths):
			return fail(exitExists, "%s is already in %s, which is in a search path", in.id(), c.Root).with("no link is needed", nil)
		}
		in.out.Action = "unchanged"
		return nil
	}
	if err := in.checkNested(in.source.Root, filepath.Base(in.source.Path) == manifest.FileName); err != nil {
		return err
	}
	if in.dryRun {
		return nil
	}
	_, missing := os.Stat(in.host.path)
	if _, err := config.AddLink(ctx, in.host.path, path); err != nil {
		return notWritten(ctx, err)
	}
	if missing != nil {
		noteCreated(in.app, in.host.path)
	}
	return nil
}

func (in *installation) collision(c discovery.Candidate) error {
	return fail(exitIDCollision, "id %q is already used by %s", in.id(), c.Root).
		with("extctl uninstall "+in.id()+", or give one of them another id", map[string]any{"path": c.Path, "root_index": c.RootIndex})
}

// copyIt copies the extension into the first search path.
func (in *installation) copyIt(ctx context.Context) error {
	target, err := in.target(ctx)
	if err != nil {
		return err
	}
	tree, err := copytree.Survey(ctx, in.source.Root)
	if err != nil {
		return in.notCopied(ctx, err)
	}
	in.out.Path, in.out.Files, in.out.Bytes = target, tree.Files, tree.Bytes
	if in.dryRun {
		return nil
	}
	err = tree.Place(ctx, target, in.out.Action == "updated")
	if errors.Is(err, copytree.ErrExists) { // it has appeared during the copy
		return fail(exitExists, "%s exists", target).with("if it is an earlier version, replace it with --update", map[string]any{"path": target})
	}
	if err != nil {
		return in.notCopied(ctx, err)
	}
	return nil
}

// inUse is the hint for a directory that cannot be replaced or removed.
func inUse(id string) string {
	if runtime.GOOS != "windows" {
		return ""
	}
	return fmt.Sprintf("Windows keeps the directory of a running program: extctl disable %s, extctl reload, repeat this, and extctl enable %[1]s", id)
}

func (in *installation) notCopied(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f := fail(exitCopyFailed, "%s was not installed: %w", in.id(), err)
	f.hint = inUse(in.id())
	if e, ok := errors.AsType[*copytree.UnfitError](err); ok {
		f.hint, f.data = "copy the targets of the links into the extension, or install it with --link", map[string]any{"entries": e.Entries}
	}
	return f
}

// finish enables what was installed and prints what was done.
func (in *installation) finish(ctx context.Context) error {
	settings := in.host.settings()
	if in.out.Enabled = enabled(settings, in.id()); in.enable && !in.out.Enabled {
		if !in.dryRun {
			if _, err := setDisabled(ctx, in.host.path, in.id(), false); err != nil {
				return fmt.Errorf("%s is %s, but not enabled: %w", in.id(), in.out.Action, err)
			}
		}
		in.out.Enabled = settings.Enabled
	}
	in.out.Takes = []string{}
	for _, p := range doctor.PartsOf(in.host.local, in.source) {
		in.out.Takes = append(in.out.Takes, p.Needs().Takes...)
	}
	slices.Sort(in.out.Takes)
	in.out.Takes = slices.Compact(in.out.Takes)
	if in.json {
		return in.printJSON(in.out)
	}
	o := in.out
	text := fmt.Sprintf("%s %s %s: %s", o.Action, o.ID, o.Version, o.Path)
	switch {
	case o.Action == "unchanged":
		text = fmt.Sprintf("%s is already linked: %s", o.ID, o.Path)
	case o.Action == "updated":
		text = fmt.Sprintf("updated %s from %s to %s: %s", o.ID, o.Replaced, o.Version, o.Path)
	}
	if o.Files > 0 {
		text += fmt.Sprintf(" (%s, %d bytes)", words.Plural(o.Files, "file"), o.Bytes)
	}
	if o.DryRun {
		text = "dry run, nothing was changed: " + text
	}
	if _, err := fmt.Fprintln(in.stdout, terminal.Clean(text)); err != nil {
		return err
	}
	in.advise()
	return nil
}

// advise prints what is left to do before the extension runs.
func (in *installation) advise() {
	if !in.out.Enabled {
		fmt.Fprintf(in.stderr, "it is not enabled: extctl enable %s\n", in.id())
	}
	for _, p := range doctor.PartsOf(in.host.local, in.source) {
		if takes := p.Needs().Takes; len(takes) > 0 {
			fmt.Fprintf(in.stderr, "%s takes from this host: %s\n", p.Own.Plugin.ID, terminal.Clean(strings.Join(takes, ", ")))
		}
		if !p.Missing.OK() {
			fmt.Fprintf(in.stderr, "%s cannot be started yet: %s\n", p.Own.Plugin.ID, terminal.Clean(p.Missing.String()))
		}
	}
	if !in.dryRun && in.out.Action != "unchanged" {
		fmt.Fprintln(in.stderr, "to apply this on running bridges: extctl reload, which prints where each of them looks for extensions")
	}
}

// target returns the directory for the copy, or an error if it is in use. An update replaces the old copy in its place.
func (in *installation) target(ctx context.Context) (string, error) {
	root, err := in.host.firstPath()
	if err != nil {
		return "", err
	}
	target := filepath.Join(root, in.id())
	in.out.Action = "installed"
	same := in.same()
	if len(same) == 0 {
		if err := in.checkTarget(target); err != nil {
			return "", err
		}
		return target, in.checkSeparate(target)
	}
	c := same[0] // it takes precedence over the others, which are not changed
	version := c.Manifest.Plugin.Version
	if c.RootIndex != 0 || !in.host.isDirect(ctx, c) || slices.ContainsFunc(in.host.settings().Links, func(link string) bool { return sameDir(link, c.Root) }) {
		return "", in.collision(c)
	}
	if !in.update {
		return "", fail(exitExists, "%s %s is installed in %s", in.id(), version, c.Root).
			with("replace it with --update", map[string]any{"path": c.Root, "version": version})
	}
	if in.host.configures(c.Root) {
		return "", usage("%s is, or contains, a search path or the target of a link, and cannot be replaced; update it in place", c.Root)
	}
	in.out.Action, in.out.Replaced = "updated", version
	return c.Root, in.checkSeparate(c.Root)
}

// firstPath is the canonical path of the first search path.
func (h localHost) firstPath() (string, error) {
	paths := h.settings().SearchPaths
	if len(paths) == 0 {
		return "", usage("extensions.search_paths is empty in %s; give a directory with --search-path", h.path)
	}
	root, err := filepath.Abs(paths[0])
	if err != nil {
		return "", fail(exitCopyFailed, "%w", err)
	}
	return resolve(root), nil
}

// resolve replaces the symbolic links in an absolute path, whose end may not exist.
func resolve(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(resolve(parent), filepath.Base(path))
}

// checkTarget fails if a new extension cannot be in target.
func (in *installation) checkTarget(target string) error {
	if slices.Contains(in.host.settings().IgnoreDirs, in.id()) {
		return usage("no extension is found in %s: extensions.ignore_dirs contains %q", target, in.id())
	}
	info, err := os.Lstat(target)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	f := fail(exitExists, "%s exists", target)
	f.data = map[string]any{"path": target}
	switch {
	case err != nil:
		return fail(exitCopyFailed, "%w", err)
	case info.Mode()&fs.ModeSymlink != 0:
		f.hint = "it is a symbolic link; remove it by hand"
	case slices.ContainsFunc(slices.Concat(in.installed.Candidates, in.installed.Shadowed), func(c discovery.Candidate) bool { return c.Root == target }):
		f.hint = "it contains another extension; rename its directory to that extension's id"
	default:
		f.hint = "no extension " + in.id() + " is found in it; move or remove it"
	}
	return f
}

// checkSeparate fails if the target and the source contain each other, or the target is inside another extension, where
// discovery would not find it.
func (in *installation) checkSeparate(target string) error {
	source := in.source.Root
	switch {
	case source == target:
		return usage("%s is also the target of the installation", source)
	case discovery.Within(source, target), discovery.Within(target, source):
		return usage("the source %s and the target %s contain each other", source, target)
	}
	return in.checkNested(target, true)
}

// checkNested fails if dir is inside another extension, or, if it hides what is below it, contains one: discovery would not find
// the inner one.
func (in *installation) checkNested(dir string, hides bool) error {
	if other := inside(dir, in.installed); other != "" && hides {
		return usage("%s also contains the extension %s, which would not be found any more", dir, other)
	}
	for _, c := range in.installed.Candidates {
		if discovery.Within(c.Root, dir) && c.Root != dir && filepath.Base(c.Path) == manifest.FileName {
			return usage("%s is inside the extension %s, where no other extension is found", dir, c.Manifest.Plugin.ID)
		}
	}
	return nil
}
