//go:build unix

package discovery

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// TestScanSpecialFiles would block if a pipe without a writer were opened for reading.
func TestScanSpecialFiles(t *testing.T) {
	for _, test := range []struct {
		name, want string
		make       func(t *testing.T, path string)
	}{
		{"pipe", "it is a named pipe", func(t *testing.T, path string) {
			if err := syscall.Mkfifo(path, 0o644); err != nil {
				t.Fatal(err)
			}
		}},
		{"socket", "it is a socket", func(t *testing.T, path string) {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}},
		{"directory", "it is a directory", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := tempDir(t)
			test.make(t, filepath.Join(dir, "plugin.toml"))
			r := Scan(t.Context(), Options{Roots: []string{dir}})
			d := one(t, r.Diagnostics)
			if d.Level != manifest.Error || !strings.Contains(d.Message, test.want) || r.InvalidCount != 1 || r.Incomplete {
				t.Errorf("got %v, %d invalid, incomplete %t", d, r.InvalidCount, r.Incomplete)
			}
		})
	}
}

// TestScanLinkToPipe uses a link to a pipe: the walk follows it, and the reader must still check the file.
func TestScanLinkToPipe(t *testing.T) {
	dir := tempDir(t)
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	symlink(t, "pipe", filepath.Join(dir, "plugin.toml"))
	r := Scan(t.Context(), Options{Roots: []string{dir}, FollowLinks: true})
	if d := one(t, r.Diagnostics); !strings.Contains(d.Message, "named pipe") {
		t.Errorf("got %v", d)
	}
}

func TestReadDevice(t *testing.T) {
	if _, err := document.ReadFile(os.DevNull); err == nil || !strings.Contains(err.Error(), "a device") {
		t.Errorf("reading a device: %v", err)
	}
}
