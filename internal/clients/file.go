package clients

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/extmesh/extmesh/internal/document"
)

// maxFile is the maximum size of a client's file. That of Claude Code also has the histories of its projects.
const maxFile = 8 << 20

// file is the content of a client's file.
type file struct {
	path   string // with links followed
	text   string
	exists bool
}

// readFile reads a client's file. One that does not exist is empty.
func readFile(path string) (file, error) {
	path, err := document.Target(path)
	if err != nil {
		return file{}, err
	}
	data, err := document.ReadRegular(os.Stat, os.OpenFile, path, maxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return file{path: path}, nil
	case err != nil:
		return file{}, fmt.Errorf("%s: %w", path, document.Reason(err))
	case len(data) > maxFile:
		return file{}, fmt.Errorf("%s has more than %d MiB", path, maxFile>>20)
	}
	return file{path, string(data), true}, nil
}

func (f file) hash() string { return hash(f.text, f.exists) }

// hash identifies a file's content; "" is a file that does not exist.
func hash(text string, exists bool) string {
	if !exists {
		return ""
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// errBusy is returned if another program writes the file again and again.
var errBusy = errors.New("another program changes the file at the same time; nothing was written; try again")

// update changes a file: edit gets its content and returns the new one. If another program has changed the file in the meantime,
// it starts over. A new file can only be read by the user. With dry, nothing is written.
func update(path string, dry bool, edit func(old file) (string, error)) (before, after file, err error) {
	for range 3 {
		if before, err = readFile(path); err != nil {
			return before, after, err
		}
		after = file{path: before.path, exists: true}
		if after.text, err = edit(before); err != nil || dry || before.exists && after.text == before.text {
			return before, after, err
		}
		if err = os.MkdirAll(filepath.Dir(before.path), 0o700); err != nil {
			return before, after, err
		}
		err = document.Replace(before.path, []byte(after.text), 0o600, func() error {
			now, err := readFile(path)
			if err == nil && now != before {
				err = errBusy
			}
			return err
		})
		if !errors.Is(err, errBusy) {
			return before, after, err
		}
	}
	return before, after, fmt.Errorf("%s: %w", path, err)
}
