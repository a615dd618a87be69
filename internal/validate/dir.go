package validate

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// maxValidateDepth is how deep below a directory manifests are searched: deeper than any bridge does, because a
// repository's extensions may be installed elsewhere.
const maxValidateDepth = 32

// directory checks every manifest in dir. Findings that belong to no manifest, such as a link out of dir, are reported
// for dir itself.
func (v *validator) directory(ctx context.Context, dir string) {
	s := v.Settings
	report := discovery.Scan(ctx, discovery.Options{
		Roots: []string{dir}, IgnoreDirs: s.IgnoreDirs, MaxDepth: maxValidateDepth, FollowLinks: s.FollowLinks, Manifest: v.Manifest,
	})
	asTyped := renamer(dir)
	found := map[string]*Result{}
	for _, c := range slices.Concat(report.Candidates, report.Shadowed) {
		found[asTyped(c.Path)] = &Result{ID: c.Manifest.Plugin.ID, Version: c.Manifest.Plugin.Version}
	}
	for _, d := range report.Diagnostics {
		d.Path = asTyped(d.Path)
		about := d.Path
		if whole := filepath.Join(filepath.Dir(about), manifest.FileName); found[whole] != nil && filepath.Base(about) == manifest.SidecarName {
			about = whole
		}
		isManifest := filepath.Base(about) == manifest.FileName || filepath.Base(about) == manifest.SidecarName
		if found[about] == nil && (!isManifest || d.Level != manifest.Error) {
			about = dir
		}
		if found[about] == nil {
			found[about] = &Result{}
		}
		if about == dir {
			found[about].Checked = "directory"
		}
		found[about].Diagnostics = append(found[about].Diagnostics, d)
	}
	if len(report.Candidates) == 0 && report.InvalidCount == 0 && !manifest.HasErrors(report.Diagnostics) {
		if found[dir] == nil {
			found[dir] = &Result{}
		}
		message := "there is no " + manifest.FileName + " and no " + manifest.SidecarName + " in it"
		unread := report.Incomplete || slices.ContainsFunc(report.Diagnostics, func(d manifest.Diagnostic) bool { return d.Level == manifest.Warn })
		if found[dir].Absent = !unread; unread {
			message = "there is no " + manifest.FileName + " and no " + manifest.SidecarName + " in what can be read of it"
		}
		found[dir].Diagnostics = append(found[dir].Diagnostics, manifest.Diagnostic{Level: manifest.Error, Path: dir, Message: message})
	}
	paths := make([]string, 0, len(found))
	for path := range found {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		found[path].Path = path
		v.add(*found[path])
	}
}

// renamer returns a function that turns discovery's canonical path of a file in dir into a path below dir as typed.
func renamer(dir string) func(string) string {
	canonical, err := filepath.Abs(dir)
	if err == nil {
		canonical, err = filepath.EvalSymlinks(canonical)
	}
	return func(path string) string {
		rest, below := strings.CutPrefix(path, canonical)
		if err != nil || !below || rest != "" && !strings.HasPrefix(rest, string(filepath.Separator)) {
			return path
		}
		return filepath.Join(dir, rest)
	}
}
