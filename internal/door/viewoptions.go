package door

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
)

// NameMode is how tools are named.
type NameMode string

// The ways to name tools.
const (
	NamesRegistered NameMode = "registered" // ext_<id>_<tool>: the names that the whole mesh uses
	NamesOwn        NameMode = "own"        // the extension's own name where only one tool of the view has it
)

// ToolMode is how tools are offered.
type ToolMode string

// The ways to offer tools.
const (
	ToolsAuto   ToolMode = "auto"   // search for a large view, all otherwise
	ToolsAll    ToolMode = "all"    // every tool is listed
	ToolsSearch ToolMode = "search" // tools for searching and calling are listed instead
)

// ViewOptions are what a view shows. The zero value shows everything.
type ViewOptions struct {
	Only     []string // patterns of ids, of <id>/<tool> or of registered names; empty: everything
	Exclude  []string // the same; they take precedence
	ReadOnly bool     // only tools whose annotations state that they only read

	Names     NameMode // default NamesRegistered
	NameLimit int      // bytes; 24 to 64, default 64

	Tools      ToolMode // default ToolsAuto
	SearchOver int      // the number of tools above which ToolsAuto searches; default 128

	HideAfter    time.Duration // an extension that is unavailable for longer is not listed. Default 5 min
	Instructions string        // instead of the generated ones; "none" for none
}

func (o ViewOptions) withDefaults() ViewOptions {
	if o.Names == "" {
		o.Names = NamesRegistered
	}
	if o.NameLimit == 0 {
		o.NameLimit = wire.MaxToolName
	}
	if o.Tools == "" {
		o.Tools = ToolsAuto
	}
	if o.SearchOver == 0 {
		o.SearchOver = 128
	}
	if o.HideAfter == 0 {
		o.HideAfter = 5 * time.Minute
	}
	return o
}

func (o ViewOptions) check() error {
	if !slices.Contains([]NameMode{NamesRegistered, NamesOwn}, o.Names) {
		return fmt.Errorf("names %q: want registered or own", o.Names)
	}
	if !slices.Contains([]ToolMode{ToolsAuto, ToolsAll, ToolsSearch}, o.Tools) {
		return fmt.Errorf("tools %q: want auto, all or search", o.Tools)
	}
	if o.NameLimit < wire.MinToolName || o.NameLimit > wire.MaxToolName {
		return fmt.Errorf("name limit %d: want %d to %d", o.NameLimit, wire.MinToolName, wire.MaxToolName)
	}
	if o.SearchOver < 0 {
		return fmt.Errorf("search over %d: want a number of tools", o.SearchOver)
	}
	for _, pattern := range slices.Concat(o.Only, o.Exclude) {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return fmt.Errorf("pattern %q: want a name with * and ?, or [a-z] for a set of characters", pattern)
		}
		id, entry, _ := strings.Cut(pattern, "/")
		if strings.Contains(id, "[") && !strings.Contains(id, "]") || strings.Contains(entry, "[") && !strings.Contains(entry, "]") {
			return fmt.Errorf("pattern %q: a set of characters cannot have a slash", pattern)
		}
	}
	return nil
}

// permits reports whether the view may show and call a tool.
func (o ViewOptions) permits(it *item) bool {
	return o.permitsName(it.key, it.registered) && (!o.ReadOnly || it.isReadOnly())
}

// matchesName reports whether a pattern matches the registered name of a tool. An exclusion must not end because a tool is added
// or removed somewhere: it also matches the name that the tool has if no other one claims the same, and that which it has then.
func matchesName(pattern string, key wire.ToolKey, registered string, excludes bool) bool {
	if ok, _ := path.Match(pattern, registered); ok || pattern == wire.SuffixedName(key.ID, key.Tool, 6) {
		return true
	}
	ok, _ := path.Match(pattern, wire.ToolName(key.ID, key.Tool))
	return excludes && ok
}

func (o ViewOptions) permitsName(key wire.ToolKey, registered string) bool {
	matches := func(pattern string, excludes bool) bool { // check has tried it
		of, glob, narrow := strings.Cut(pattern, "/")
		ofID, _ := path.Match(of, key.ID)
		if narrow {
			ok, _ := path.Match(withoutSlashes(glob), withoutSlashes(key.Tool))
			return ofID && ok
		}
		return ofID || matchesName(pattern, key, registered, excludes)
	}
	shown := func(pattern string) bool { return matches(pattern, false) }
	hidden := func(pattern string) bool { return matches(pattern, true) }
	return (len(o.Only) == 0 || slices.ContainsFunc(o.Only, shown)) && !slices.ContainsFunc(o.Exclude, hidden)
}
