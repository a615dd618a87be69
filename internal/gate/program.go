package gate

import (
	"errors"
	"io/fs"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Program returns what manifest.Options.Program asks for, of an extension whose directory is root: what is wrong with a
// program that is given by its path. One given by a name is what requires.bins is for.
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
		// It looks as a start would: executable, on Windows with the extensions of PATHEXT.
		_, err := exec.LookPath(file)
		switch {
		case err == nil, errors.Is(err, exec.ErrDot):
			return ""
		case errors.Is(err, fs.ErrNotExist):
			return "there is no such file yet; until it is built or installed, or the path corrected, the extension cannot be started"
		case errors.Is(err, syscall.EISDIR):
			return "is a directory; want the program to run"
		case errors.Is(err, fs.ErrPermission):
			return "is not executable; chmod +x it, or name the interpreter and give the file as an argument"
		}
		return "cannot be run: " + reason(err)
	}
}

// reason is err without the path, which whoever reads it has before him.
func reason(err error) string {
	if e, ok := errors.AsType[*exec.Error](err); ok {
		err = e.Err
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return err.Error()
}
