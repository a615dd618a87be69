package validate

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/nearest"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// settingsFile checks an extensions.yaml, and names the ids in it that no extension in its search paths has.
func (v *validator) settingsFile(ctx context.Context, path string) {
	settings, diags := config.Load(path, true)
	if manifest.HasErrors(diags) {
		v.add(Result{Path: path, Diagnostics: diags})
		return
	}
	report := discovery.Scan(ctx, discovery.Options{
		Roots: settings.SearchPaths, Links: settings.Links, IgnoreDirs: settings.IgnoreDirs, MaxDepth: settings.MaxDepth,
		FollowLinks: settings.FollowLinks, Manifest: v.Manifest,
	})
	ids := map[string]bool{}
	for _, c := range report.Candidates {
		ids[c.Manifest.Plugin.ID] = true
		for _, m := range c.Manifest.Members() {
			ids[m.Plugin.ID] = true
		}
	}
	// Without any extension, this is not the machine or directory where the file is used.
	if len(ids) > 0 && !report.Incomplete && report.InvalidCount == 0 {
		diags = append(diags, unusedIDs(path, settings, ids)...)
	}
	v.add(Result{Path: path, Checked: "settings of a host; " + words.Plural(len(report.Candidates), "extension") + " found", Diagnostics: diags})
}

// unusedIDs returns warnings for ids in the settings that no extension has.
func unusedIDs(path string, c config.Config, ids map[string]bool) (diags []manifest.Diagnostic) {
	known := slices.Sorted(maps.Keys(ids))
	for _, l := range []struct {
		key string
		ids []string
	}{
		{"extensions.entries", slices.Sorted(maps.Keys(c.Entries))}, {"extensions.disabled", c.Disabled}, {"extensions.allowlist", c.Allowlist},
	} {
		for _, id := range l.ids {
			if ids[id] {
				continue
			}
			message := "no extension in " + strings.Join(c.Roots(), ", ") + " has the id " + id
			if near := nearest.Words(id, known); len(near) > 0 {
				message += "; did you mean " + words.Or(near) + "?"
			}
			diags = append(diags, manifest.Diagnostic{Level: manifest.Warn, Path: path, Key: l.key, Message: message})
		}
	}
	return diags
}
