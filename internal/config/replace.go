package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// replace puts data in path's place: all of it or, on an error, nothing. Mode and, where the system lets us, owner
// stay, so that an edit by root does not take the file from the service that reads it.
func replace(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // gone already, if all went well
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
