package child

import (
	"fmt"
	"os"
	"path/filepath"
)

// TakeOver ends what an earlier process of this kind left behind, for the case that it and its guard were killed
// together: what its Runs had started, as long as it carries the mark in its environment or is in one of its cgroups. The
// file names that process; release, called after the last Run, removes it. Where the process still exists, the file stays
// its own and nothing is done. ended is how many processes were found.
//
// It works on Linux only; elsewhere it does nothing.
func TakeOver(file string) (ended int, release func(), err error) {
	release = func() {}
	var pid, started int
	var former string
	text, err := os.ReadFile(file)
	if err == nil {
		if _, err := fmt.Sscanf(string(text), "%d %d %s", &pid, &started, &former); err == nil && validCookie(former) {
			if processIs(pid, started) {
				return 0, release, nil
			}
			ended = endBelonging(former)
		}
	}
	own := ownIdentity()
	if own == "" {
		return ended, release, nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return ended, release, err
	}
	if err := os.WriteFile(file, []byte(own), 0o600); err != nil {
		return ended, release, err
	}
	return ended, func() { _ = os.Remove(file) }, nil // a file that stays costs the next one a look at all processes
}
