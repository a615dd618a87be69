//go:build unix

package document

import (
	"io/fs"
	"os"
	"syscall"
)

// keepOwner sets the owner of f to that in info, if permitted.
func keepOwner(f *os.File, info fs.FileInfo) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		_ = f.Chown(int(st.Uid), int(st.Gid)) // fails unless run by root; other users already own the new file
	}
}
