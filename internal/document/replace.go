package document

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Target follows symbolic links, so that an edit replaces the file and not the link. The file itself need not exist.
func Target(path string) (string, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	return filepath.EvalSymlinks(path)
}

// Replace writes data to path: all of it or, on an error, nothing. The mode and, if permitted, the owner stay, so
// that the service can still read the file after an edit by root; a new file has the given mode. If unchanged is not nil, it
// is called when the new content is on the disk, and an error of it stops the replacement.
func Replace(path string, data []byte, mode fs.FileMode, unchanged func() error) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails if the rename has succeeded
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
		keepOwner(tmp, info)
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil && unchanged != nil {
		err = unchanged()
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
