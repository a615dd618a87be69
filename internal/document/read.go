package document

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
)

// ReadFile is os.ReadFile for hostile trees: it refuses anything but regular files, because a pipe would block and a
// device might never end. It reads at most one byte more than MaxFile, so that Open can refuse larger files.
func ReadFile(path string) ([]byte, error) {
	return ReadRegular(os.Stat, os.OpenFile, path, MaxFile)
}

// ReadRegular is ReadFile for another limit, or for a directory that is an os.Root.
func ReadRegular(stat func(string) (fs.FileInfo, error), open func(string, int, fs.FileMode) (*os.File, error), path string, limit int64) ([]byte, error) {
	// Check before the open, which may affect a device, and after it, because the file may have been replaced.
	info, err := stat(path)
	if err == nil {
		err = regular(info)
	}
	if err != nil {
		return nil, err
	}
	f, err := open(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err == nil {
		err = regular(info)
	}
	if err != nil {
		return nil, err
	}
	// One buffer of the file's size instead of io.ReadAll's growing ones: there may be thousands of files.
	// A file of /proc has no size.
	var b bytes.Buffer
	b.Grow(int(min(max(info.Size(), 0), limit)) + bytes.MinRead)
	_, err = b.ReadFrom(io.LimitReader(f, limit+1))
	return b.Bytes(), err
}

// Reason returns err without the operation and the path, which is part of a finding anyway.
func Reason(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
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
	default:
		kind = "of an unknown kind"
	}
	return errors.New("it is " + kind + ", not a regular file")
}
