package discovery

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// readRegular is os.ReadFile for hostile trees: it refuses what is no regular file, since a pipe would hang it and a
// device never end, and reads one byte more than manifest.MaxFile at most, enough for the parsers to refuse the
// rest.
func readRegular(path string) ([]byte, error) {
	// Before the open, which may do something to a device; after it, since the file may be another by then.
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if err := regular(info); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, err
	}
	if err := regular(info); err != nil {
		return nil, err
	}
	// A buffer of the file's size, and not io.ReadAll's growing ones: there may be thousands of files.
	size := min(max(info.Size(), 0), manifest.MaxFile) + 1
	data := make([]byte, size)
	n, err := io.ReadFull(f, data)
	if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return data[:n], err
}

func regular(info fs.FileInfo) error {
	kind := ""
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		kind = "a directory"
	case mode&fs.ModeNamedPipe != 0:
		kind = "a named pipe"
	case mode&fs.ModeSocket != 0:
		kind = "a socket"
	case mode&fs.ModeDevice != 0:
		kind = "a device"
	case mode&fs.ModeSymlink != 0:
		kind = "a symbolic link"
	default:
		kind = "of an unknown kind"
	}
	return errors.New("it is " + kind + ", not a regular file")
}
