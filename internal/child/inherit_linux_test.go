package child

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDescriptors: a child has its three pipes and no other descriptors, not even one that this process inherited from a
// parent that left it open.
func TestDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "of-the-parent")
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR, 0o600) // without O_CLOEXEC
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var got []byte
	spec := Spec{Command: "/bin/sh", Args: []string{"-c", "ls -l /proc/$$/fd; cat >/dev/null"}, Env: os.Environ()}
	err = Run(t.Context(), spec, func(_ context.Context, p *Process) (err error) {
		p.Stdin.Close()
		got, err = io.ReadAll(p.Stdout)
		return err
	})
	if exit, ok := errors.AsType[*ExitError](err); err != nil && (!ok || exit.ExitCode != 0) {
		t.Fatal(err)
	}
	if text := string(got); strings.Count(text, "pipe:") != 3 || strings.Contains(text, "of-the-parent") {
		t.Errorf("the child has these descriptors:\n%s", text)
	}
}
