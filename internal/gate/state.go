package gate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// MakeStateDir makes the directory in which the extension may keep things, base/id, and returns its absolute
// path, the value of EXTMESH_STATE_DIR. It is made with mode 0700, base too if it does not exist; one that
// exists is left as it is, since an operator may have made it so. All replicas and lives of an extension on a
// host share it; a member has its own.
func MakeStateDir(base, id string) (string, error) {
	if id == "" || id == "." || !filepath.IsLocal(id) || strings.ContainsAny(id, `/\`) {
		return "", fmt.Errorf("state directory: %q cannot name a directory; want an extension's id", id)
	}
	dir, err := filepath.Abs(filepath.Join(base, id))
	if err != nil {
		return "", fmt.Errorf("state directory of %s: %w", id, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("state directory of %s: %w; give it a directory that can be written to, with --state-dir", id, err)
	}
	return dir, nil
}
