package manifest

import (
	"fmt"
	"slices"
	"strings"
)

// Level is the severity of a diagnostic.
type Level string

// The levels. A file with an Error is not used; Warn and Info are for the operator.
const (
	Error Level = "error"
	Warn  Level = "warn"
	Info  Level = "info"
)

// Diagnostic is one finding about one position in a file: what is wrong and what would be right. Messages never
// contain the value of a variable, a header or a URL, because those may be secrets.
type Diagnostic struct {
	Level   Level  `json:"level"`
	Path    string `json:"path"`
	Line    int    `json:"line,omitempty"`   // 1-based; 0 = the file as a whole
	Column  int    `json:"column,omitempty"` // 1-based, in bytes
	Key     string `json:"key,omitempty"`    // dotted, e.g. plugin.id or capabilities.tools[2]
	Message string `json:"message"`
}

// String returns path:line:column: level: key: message, without the absent parts; editors and terminals can jump to
// it.
func (d Diagnostic) String() string {
	var b strings.Builder
	b.WriteString(d.Path)
	if d.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", d.Line, d.Column)
	}
	fmt.Fprintf(&b, ": %s: ", d.Level)
	if d.Key != "" {
		b.WriteString(d.Key + ": ")
	}
	b.WriteString(d.Message)
	return b.String()
}

// HasErrors reports whether one of diags is an Error.
func HasErrors(diags []Diagnostic) bool {
	return slices.ContainsFunc(diags, func(d Diagnostic) bool { return d.Level == Error })
}
