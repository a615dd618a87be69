package gate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// MakeStateDir creates the directory base/id, in which the extension may store data, and returns its absolute path, the
// value of EXTMESH_STATE_DIR. The mode of the directory, and of base if it does not exist, is 0700. An existing
// directory is not changed, since an operator may have set its mode. All replicas of an extension on a host share it,
// and it remains over restarts; a member has its own.
func MakeStateDir(base, id string) (string, error) {
	dir, err := StateDir(base, id)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("state directory of %s: %w; give it a directory that can be written to, with --state-dir", id, err)
	}
	return dir, nil
}

// StateDir returns the path of MakeStateDir.
func StateDir(base, id string) (string, error) {
	if id == "" || id == "." || !filepath.IsLocal(id) || strings.ContainsAny(id, `/\`) {
		return "", fmt.Errorf("state directory: %q cannot be a directory's name; want an extension's id", id)
	}
	return filepath.Abs(filepath.Join(base, id))
}
