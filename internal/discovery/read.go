package discovery

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// readRegular is os.ReadFile for hostile trees: it refuses anything but regular files, because a pipe would block and
// a device might never end. It reads at most one byte more than manifest.MaxFile, so that the parsers can refuse
// larger files.
func readRegular(path string) ([]byte, error) {
	// Check before the open, which may affect a device, and after it, because the file may have been replaced.
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
	// One buffer of the file's size instead of io.ReadAll's growing ones: there may be thousands of files.
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
