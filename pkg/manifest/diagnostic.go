package manifest

import (
	"slices"

	"github.com/extmesh/extmesh/internal/document"
)

// Level is the severity of a diagnostic.
type Level = document.Level

// The levels. A file with an Error is not used; Warn and Info are for the operator.
const (
	Error = document.Error
	Warn  = document.Warn
	Info  = document.Info
)

// Diagnostic is one finding about one position in a file: what is wrong and what would be right. Its String is
// path:line:column: level: key: message.
type Diagnostic = document.Finding

// HasErrors reports whether one of diags is an Error.
func HasErrors(diags []Diagnostic) bool {
	return slices.ContainsFunc(diags, func(d Diagnostic) bool { return d.Level == Error })
}
