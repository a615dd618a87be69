package gate

import (
	"errors"
	"io/fs"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Program returns a function for manifest.Options.Program, for an extension in the directory root. The function
// describes what is wrong with a program that is given by its path. A program given by name is not checked here;
// requires.bins covers it.
func Program(root string) func(command, cwd string) string {
	return func(command, cwd string) string {
		if !isPath(command) {
			return ""
		}
		file := command
		if !filepath.IsAbs(file) {
			if !filepath.IsAbs(cwd) {
				cwd = filepath.Join(root, cwd)
			}
			file = filepath.Join(cwd, file)
		}
		if !isPath(file) {
			file = "." + string(filepath.Separator) + file // Join has cleaned ./x to x, which is a name
		}
		// The same check as when the program is started: executable, on Windows with the extensions of PATHEXT.
		_, err := exec.LookPath(file)
		switch {
		case err == nil, errors.Is(err, exec.ErrDot):
			return ""
		case errors.Is(err, fs.ErrNotExist):
			return "does not exist; build or install it, or correct the path: until then the extension cannot be started"
		case errors.Is(err, syscall.EISDIR):
			return "is a directory; want the program to run"
		case errors.Is(err, fs.ErrPermission):
			return "is not executable; chmod +x it, or name the interpreter and give the file as an argument"
		}
		return "cannot be run: " + reason(err)
	}
}

// reason returns err without the path, which the diagnostic already contains.
func reason(err error) string {
	if e, ok := errors.AsType[*exec.Error](err); ok {
		err = e.Err
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return err.Error()
}
