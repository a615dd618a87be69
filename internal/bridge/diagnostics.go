package bridge

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// isNew records a finding about to be logged and reports whether the previous plan did not already log it: a plan is
// made from scratch whenever a file changes, and findings that remain are not logged again.
func (b *Bridge) isNew(p *plan, of, what string) bool {
	key := of + ": " + what
	p.logged[key] = true
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.logged[key]
}

// addDiagnostic logs d and, if it is an error, adds it to the host's problems.
func (b *Bridge) addDiagnostic(p *plan, d manifest.Diagnostic) {
	if b.isNew(p, "finding", d.String()) {
		switch d.Level {
		case manifest.Error:
			b.logFinding(slog.LevelError, "manifest refused", "error", d)
		case manifest.Warn:
			b.logFinding(slog.LevelWarn, "manifest loaded with a warning", "problem", d)
		default:
			b.logFinding(slog.LevelInfo, "manifest note", "note", d)
		}
	}
	if d.Level == manifest.Error {
		p.host.Problems = append(p.host.Problems, mesh.HostProblem{Path: d.Path, Kind: "invalid", Message: where(d) + d.Message})
	}
}

// logFinding logs d with a constant message; the problem and its place are attributes.
func (b *Bridge) logFinding(level slog.Level, msg, key string, d manifest.Diagnostic) {
	args := []any{"path", d.Path}
	if d.Line > 0 {
		args = append(args, "line", d.Line, "column", d.Column)
	}
	if d.Key != "" {
		args = append(args, "key", d.Key)
	}
	b.log.Log(context.TODO(), level, msg, append(args, key, d.Message)...)
}

func where(d manifest.Diagnostic) string {
	var parts []string
	if d.Line > 0 {
		parts = append(parts, fmt.Sprintf("line %d, column %d", d.Line, d.Column))
	}
	if d.Key != "" {
		parts = append(parts, d.Key)
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, ": ") + ": "
}

// logMissing logs the requirements of w that this host does not meet.
func (b *Bridge) logMissing(p *plan, w *workload) {
	switch {
	case w.missing.OK() || !b.isNew(p, w.id(), w.missing.String()+w.gated):
	case w.gated != "":
		gate.LogSkipped(b.log, w.id(), w.missing)
	default:
		gate.LogContinuing(b.log, w.id(), w.missing)
	}
}
