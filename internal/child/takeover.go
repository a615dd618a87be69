package child

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/extmesh/extmesh/internal/document"
)

// TakeOver ends the processes that an earlier process of this program left behind, in case that process and its guard were
// killed together: everything its Runs started that has a marker in its environment or is in one of its cgroups. The file
// identifies the earlier process; release, called after the last Run, removes it. If the earlier process is still
// running, TakeOver does nothing and leaves the file to it. ended is the number of processes found.
//
// It works on Linux only; elsewhere it does nothing.
func TakeOver(file string) (ended int, release func(), err error) {
	release = func() {}
	var pid, started int
	var prefix string
	text, err := document.ReadFile(file) // the extensions' directories are next to it, and their programs may replace it
	if err == nil {
		if _, err := fmt.Sscanf(string(text), "%d %d %s", &pid, &started, &prefix); err == nil && validPrefix(prefix) {
			if processIs(pid, started) {
				return 0, release, nil
			}
			ended = endBelonging(prefix)
		}
	}
	own := ownIdentity()
	if own == "" {
		return ended, release, nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return ended, release, err
	}
	_ = os.Remove(file) // Replace keeps its mode
	if err := document.Replace(file, []byte(own), 0o600, nil); err != nil {
		return ended, release, err
	}
	return ended, func() { _ = os.Remove(file) }, nil // if it cannot be removed, the next start only scans all processes
}
