package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// builtIn is the directory of the built programs; nil before they are built.
var builtIn atomic.Pointer[string]

// programs builds the programs once, with the race detector if the test itself has it.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "extmesh-e2e-")
	if err != nil {
		return "", err
	}
	builtIn.Store(&dir)
	args := []string{"build", "-ldflags=-s -w", "-o", dir + string(filepath.Separator)} // without symbols it links faster
	if raceEnabled {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "../cmd/...", "../examples/services/primes")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return dir, nil
})

// program returns the path of registry, stdio-bridge, extctl, or primes, the Go service of examples/services.
func program(t testing.TB, name string) string {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}
