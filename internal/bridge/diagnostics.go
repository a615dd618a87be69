package bridge

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// isNew records a finding about to be logged and reports whether the previous plan did not already log it: a plan is
// made from scratch whenever a file changes, and findings that remain are not logged again.
func (pl *planner) isNew(p *plan, of, what string) bool {
	key := of + ": " + what
	p.logged[key] = true
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return !pl.logged[key]
}

// addDiagnostic logs d, unless Quiet leaves it to the caller, and adds an error to the host's problems.
func (pl *planner) addDiagnostic(p *plan, d manifest.Diagnostic) {
	printed := pl.cfg.Quiet && (d.Level == manifest.Error || d.Key == "extensions.search_paths" && len(pl.config().SearchPaths) == 1)
	if pl.isNew(p, "finding", d.String()) && !printed {
		switch d.Level {
		case manifest.Error:
			pl.logFinding(slog.LevelError, "manifest refused", "error", d)
		case manifest.Warn:
			pl.logFinding(slog.LevelWarn, "manifest loaded with a warning", "problem", d)
		default:
			pl.logFinding(slog.LevelInfo, "manifest note", "note", d)
		}
	}
	if d.Level == manifest.Error {
		p.problems = append(p.problems, wire.HostProblem{Path: d.Path, Kind: "invalid", Message: where(d) + d.Message})
	}
}

// logFinding logs d with a constant message; the problem and its place are attributes.
func (pl *planner) logFinding(level slog.Level, msg, key string, d manifest.Diagnostic) {
	args := []any{"path", d.Path}
	if d.Line > 0 {
		args = append(args, "line", d.Line, "column", d.Column)
	}
	if d.Key != "" {
		args = append(args, "key", d.Key)
	}
	pl.log.Log(context.TODO(), level, msg, append(args, key, d.Message)...)
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
func (pl *planner) logMissing(p *plan, w *workload) {
	switch {
	case w.missing.OK() || !pl.isNew(p, w.id(), w.missing.String()+w.gated):
	case w.gated != "":
		gate.LogSkipped(pl.log, w.id(), w.missing)
	default:
		gate.LogContinuing(pl.log, w.id(), w.missing)
	}
}
