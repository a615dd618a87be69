package document

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, size := range []int{0, 1, 1000, MaxFile, MaxFile + 1, MaxFile + 100} {
		if err := os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o644); err != nil {
			t.Fatal(err)
		}
		if data, err := ReadFile(path); err != nil || len(data) != min(size, MaxFile+1) {
			t.Errorf("%d bytes: got %d, %v", size, len(data), err)
		}
	}
	// A file without a size.
	if want, err := os.ReadFile("/proc/self/status"); err == nil {
		if data, err := ReadFile("/proc/self/status"); err != nil || len(data) < len(want)/2 {
			t.Errorf("/proc/self/status: got %d bytes of %d, %v", len(data), len(want), err)
		}
	}
	if _, err := ReadFile(dir); err == nil || !strings.Contains(err.Error(), "it is a directory, not a regular file") {
		t.Errorf("a directory: %v", err)
	}
	if _, err := ReadFile(filepath.Join(dir, "absent")); !os.IsNotExist(err) {
		t.Errorf("an absent file: %v", err)
	}
}
