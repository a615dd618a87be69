//go:build unix

package config

import (
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives f the owner that info shows, if we may.
func keepOwner(f *os.File, info fs.FileInfo) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		_ = f.Chown(int(st.Uid), int(st.Gid)) // only root may; for others the file is their own already, or becomes it
	}
}
