//go:build !unix

package config

import (
	"io/fs"
	"os"
)

// keepOwner does nothing: the directory decides.
func keepOwner(*os.File, fs.FileInfo) {}
