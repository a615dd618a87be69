package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestUpInOpenedDirectory: an MCP client starts extctl mcp --up in the directory that it has opened. A stranger may have written the
// files in it.
func TestUpInOpenedDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config", "extensions.yaml"), []byte("extensions: {links: [./evil]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	o := upOptions{dirs: []string{"mine"}, noConfig: true}
	c, err := upSettings(o, slog.New(slog.DiscardHandler))
	if err != nil || len(c.Links) > 0 || !slices.Equal(c.SearchPaths, o.dirs) || !c.Watch.Reload {
		t.Errorf("%+v, %v", c, err)
	}
	o.noConfig = false
	if c, err = upSettings(o, slog.New(slog.DiscardHandler)); err != nil || len(c.Links) != 1 {
		t.Errorf("extctl up itself: %+v, %v", c, err)
	}
	o.join = true
	if c, err = upSettings(o, slog.New(slog.DiscardHandler)); err != nil || len(c.Links) != 1 {
		t.Errorf("extctl up --join DIR on a mesh of bridges: %+v, %v", c, err)
	}
	o.joinsUp = true
	if c, err = upSettings(o, slog.New(slog.DiscardHandler)); err != nil || len(c.Links) > 0 {
		t.Errorf("extctl up --join DIR runs the links a second time: %+v, %v", c, err)
	}
}
