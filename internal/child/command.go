package child

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// resolve returns the path of the program. It is absolute wherever the child's directory could matter.
func resolve(command, dir string, env []string) (string, error) {
	if command == "" {
		return "", errors.New("the command is empty")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if filepath.IsAbs(command) {
		return withExtension(command), nil
	}
	if strings.ContainsRune(command, '/') || strings.ContainsRune(command, filepath.Separator) {
		return withExtension(filepath.Join(abs, command)), nil
	}
	if runtime.GOOS == "windows" { // uses PATHEXT, of this process's environment
		return exec.LookPath(command)
	}
	path := lookupEnv(env, "PATH")
	for _, d := range filepath.SplitList(path) {
		if d == "" {
			continue // in POSIX the current directory, but an empty element is nearly always a mistake
		}
		if !filepath.IsAbs(d) {
			d = filepath.Join(abs, d)
		}
		if p, err := exec.LookPath(filepath.Join(d, command)); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%q is not in the PATH it would run with (%s): install it, or give its path: %w", command, path, exec.ErrNotFound)
}

// withExtension adds the extension that the path of a program may lack on Windows.
func withExtension(path string) string {
	if runtime.GOOS == "windows" {
		if p, err := exec.LookPath(path); err == nil {
			return p
		}
	}
	return path
}

func lookupEnv(env []string, key string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if k, v, ok := strings.Cut(env[i], "="); ok && k == key {
			return v
		}
	}
	return ""
}

// environ returns env with the marker in front, one value per key, and without the guard's variable. The marker is first
// because readEnviron reads only the beginning of a very large environment.
func environ(env []string, marker string) []string {
	out := append(make([]string, 0, len(env)+1), markerVar+"="+marker)
	last := make(map[string]int, len(env))
	for i, kv := range env {
		k, _, _ := strings.Cut(kv, "=")
		last[k] = i
	}
	for i, kv := range env {
		k, _, ok := strings.Cut(kv, "=")
		if !ok || last[k] != i || k == markerVar || k == guardVar {
			continue
		}
		out = append(out, kv)
	}
	return out
}

// explain adds to a start's error whether the program, its interpreter or the directory is missing, which the system's
// error does not contain.
func explain(path, dir string, err error) error {
	if st, dirErr := os.Stat(dir); dir != "" && (dirErr != nil || !st.IsDir()) {
		return fmt.Errorf("its directory %s cannot be entered: %w", dir, err)
	}
	st, statErr := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && statErr == nil:
		return fmt.Errorf("%s exists, but the interpreter in its first line (or its loader) does not: %w", path, err)
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("%s has no #! line, or is a program for another system: %w", path, err)
	case errors.Is(err, fs.ErrPermission) && statErr == nil && st.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not executable (chmod +x): %w", path, err)
	}
	return err
}
