package child

import (
	"io"
	"os"
)

// Windows' anonymous pipes know neither deadlines nor non-blocking operations.

type attempt struct{}

func (*attempt) init(*os.File) {}

func (*attempt) write([]byte) (int, error) { return 0, nil }

type lazyReader struct{ f *os.File }

func (r *lazyReader) init(f *os.File) { r.f = f }

func (r *lazyReader) read(buffer func() []byte, _ func()) (int, error) { return r.f.Read(buffer()) }

func readNow(*os.File, []byte) (int, error) { return 0, io.EOF }
