package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// replace writes data to path: all of it or, on an error, nothing. The mode and, if permitted, the owner stay, so
// that the service can still read the file after an edit by root.
func replace(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails if the rename has succeeded
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
		keepOwner(tmp, info)
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
