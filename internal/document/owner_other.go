//go:build !unix

package document

import (
	"io/fs"
	"os"
)

// keepOwner does nothing: the directory determines the owner.
func keepOwner(*os.File, fs.FileInfo) {}
