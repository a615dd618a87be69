package discovery

import (
	"fmt"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// findings collects diagnostics.
type findings struct {
	diags      []manifest.Diagnostic
	incomplete bool // Report.Incomplete
}

func (f *findings) add(level manifest.Level, path, key, format string, args ...any) {
	f.diags = append(f.diags, manifest.Diagnostic{Level: level, Path: path, Key: key, Message: fmt.Sprintf(format, args...)})
}
