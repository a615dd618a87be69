package discovery

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/manifest"
)

func minimalManifest(id string) string { return fmt.Sprintf(minimal, id) }

// one returns the only diagnostic of a report.
func one(t *testing.T, diags []manifest.Diagnostic) manifest.Diagnostic {
	t.Helper()
	if len(diags) != 1 {
		t.Fatalf("got %d diagnostics, want 1: %v", len(diags), diags)
	}
	return diags[0]
}

func TestScanSize(t *testing.T) {
	dir := tempDir(t)
	text := minimalManifest("full")
	write(t, filepath.Join(dir, "full", "plugin.toml"), text+strings.Repeat("#", manifest.MaxFile-len(text)))
	write(t, filepath.Join(dir, "over", "plugin.toml"), text+strings.Repeat("#", manifest.MaxFile-len(text)+1))
	write(t, filepath.Join(dir, "side", "plugin.toml"), minimalManifest("side"))
	write(t, filepath.Join(dir, "side", ".mcp.json"), strings.Repeat(" ", manifest.MaxFile+1))

	r := Scan(t.Context(), Options{Roots: []string{dir}})
	if len(r.Candidates) != 2 || r.InvalidCount != 1 {
		t.Errorf("got %d candidates and %d invalid, want 2 and 1", len(r.Candidates), r.InvalidCount)
	}
	levels := map[string]manifest.Level{}
	for _, d := range r.Diagnostics {
		rel, _ := filepath.Rel(dir, d.Path)
		levels[filepath.ToSlash(rel)] = d.Level
	}
	if want := map[string]manifest.Level{"over/plugin.toml": manifest.Error, "side/.mcp.json": manifest.Warn}; !reflect.DeepEqual(levels, want) {
		t.Errorf("got %v, want %v", levels, want)
	}
}

func TestScanHash(t *testing.T) {
	dir := tempDir(t)
	scan := func() string {
		r := Scan(t.Context(), Options{Roots: []string{dir}})
		if len(r.Candidates) != 1 {
			t.Fatalf("got %v", r)
		}
		hash := r.Candidates[0].Manifest.Hash
		for _, m := range r.Candidates[0].Manifest.Members() {
			hash = m.Hash
		}
		return hash
	}
	write(t, filepath.Join(dir, "plugin.toml"), minimalManifest("one"))
	seen := map[string]string{scan(): "alone"}
	for _, text := range []string{`{"mcpServers": {"a": {"command": "a"}}}`, `{"mcpServers": {"a": {"command": "b"}}}`} {
		write(t, filepath.Join(dir, ".mcp.json"), text)
		hash := scan()
		if was, twice := seen[hash]; twice || len(hash) != 64 {
			t.Errorf("the hash for sidecar %s, %s, is also that for %s", text, hash, was)
		}
		seen[hash] = text
	}
	// A sidecar without servers is not part of the extension.
	own := minimalManifest("one") + "[mcp_servers.mine]\ntype = \"stdio\"\ncommand = \"mine\"\n"
	write(t, filepath.Join(dir, "plugin.toml"), own)
	before := scan()
	write(t, filepath.Join(dir, ".mcp.json"), `{"mcpServers": {}}`)
	if after := scan(); after != before {
		t.Errorf("the hash depends on a sidecar that is not read")
	}
}

func TestScanLimit(t *testing.T) {
	dir := tempDir(t)
	for i := range 20 {
		write(t, filepath.Join(dir, fmt.Sprintf("d%02d", i), "plugin.toml"), minimalManifest(fmt.Sprintf("id%02d", i)))
	}
	for _, test := range []struct{ limit, locations int }{{40, 20}, {39, 19}, {25, 5}, {20, 0}, {19, 0}, {0, 0}} {
		w := newWalker(nil, 0, false)
		w.left = test.limit
		w.walk(t.Context(), canonical([]string{dir}, nil, &w.findings))
		if cut := test.locations < 20; len(w.locations) != test.locations || w.incomplete != cut {
			t.Errorf("limit %d: got %d locations, incomplete %t; want %d, %t", test.limit, len(w.locations), w.incomplete, test.locations, cut)
		} else if cut {
			if d := one(t, w.diags); d.Level != manifest.Error || !strings.Contains(d.Message, "1000000 directory entries") {
				t.Errorf("limit %d: got %v", test.limit, d)
			}
		}
	}
}

func TestScanCancelled(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "a", "plugin.toml"), minimalManifest("aa"))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	r := Scan(ctx, Options{Roots: []string{dir}})
	if d := one(t, r.Diagnostics); !r.Incomplete || len(r.Candidates) != 0 || !strings.Contains(d.Message, "enough") {
		t.Errorf("got %+v", r)
	}
	// The context may also end between the walk and the parsing.
	s := scan{}
	s.parse(ctx, []location{{dir: dir, file: filepath.Join(dir, "a", "plugin.toml")}}, manifest.Options{})
	if d := one(t, s.diags); !s.incomplete || d.Level != manifest.Error {
		t.Errorf("got %+v", s)
	}
}

func TestScanManySkippedLinks(t *testing.T) {
	dir := tempDir(t)
	for i := range maxSkippedLinks + 7 {
		symlink(t, ".", filepath.Join(dir, fmt.Sprint(i)))
	}
	r := Scan(t.Context(), Options{Roots: []string{dir}})
	if len(r.Diagnostics) != maxSkippedLinks+1 {
		t.Fatalf("got %d diagnostics, want %d", len(r.Diagnostics), maxSkippedLinks+1)
	}
	if last := r.Diagnostics[maxSkippedLinks]; !strings.HasPrefix(last.Message, "7 more") {
		t.Errorf("got %v", last)
	}
}

// TestScanMany checks that the order does not depend on which parser is first, and that the scan is fast.
func TestScanMany(t *testing.T) {
	dir := tempDir(t)
	generate(t, dir, 600)
	opt := Options{Roots: []string{dir}, Disabled: []string{"ext-00007"}}
	began := time.Now()
	first := Scan(t.Context(), opt)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("a scan of 600 manifests took %v", took)
	}
	if len(first.Candidates) != 599 || first.DisabledCount != 1 || first.ScannedDirs != 607 || len(first.Diagnostics) != 0 {
		t.Fatalf("got %d candidates, %d disabled, %d directories, %v", len(first.Candidates), first.DisabledCount, first.ScannedDirs, first.Diagnostics)
	}
	if !reflect.DeepEqual(Scan(t.Context(), opt), first) {
		t.Error("two scans of the same tree differ")
	}
}

func TestWithin(t *testing.T) {
	for _, test := range []struct {
		dir, path string
		want      bool
	}{
		{"/a", "/a", true},
		{"/a", "/a/b", true},
		{"/a", "/ab", false},
		{"/a/b", "/a", false},
		{"/", "/", true},
		{"/", "/a", true},
	} {
		dir, path := filepath.FromSlash(test.dir), filepath.FromSlash(test.path)
		if got := Within(dir, path); got != test.want {
			t.Errorf("Within(%q, %q) = %t, want %t", dir, path, got, test.want)
		}
	}
}
