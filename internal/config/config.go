// Package config reads extensions.yaml, which tells a host which extensions to run and how, and edits its lists
// for extctl without touching a comment.
//
//	extensions:
//	  search_paths: [./extensions]
//	  disabled: [weather]
//	  gating: warn
//	  watch: {enabled: true, reload: true}
//	  supervision:
//	    call_timeout: 1m
//	  entries:
//	    transcriber: {call_timeout: 10m, replicas: 2}
//
// docs/configuration.md has every key for those who write the file.
//
// [Load] is like a compiler: it returns every fault of the file at once, with line and column, and an unknown key
// is one of them, since a misspelt limit that is silently the default is found on the day it is needed. Every key
// may be left out; [Default] is what the file then says. Durations are written 10s or 1m30s, sizes 64MiB or in
// plain bytes.
//
// Relative paths (search_paths, links, skills_dir) are relative to the working directory of the program that reads
// the file, and "~/" is the home directory. Not to the file's own directory: the file is usually
// config/extensions.yaml and means ./extensions, the directory beside config.
//
// [SetDisabled], [AddLink] and [RemoveLink] change the lists that extctl's enable, disable and install own, under a
// lock and atomically.
package config

import (
	"slices"
	"time"
)

// DefaultPath is where extensions.yaml is looked for when nobody says.
const DefaultPath = "config/extensions.yaml"

// Config is the extensions section of extensions.yaml; the comments say the key where it is not the field's name in
// snake case, the default, and the bounds that Parse holds the file to. Start from Default or Load; the zero Config
// scans nothing.
type Config struct {
	Enabled     bool     // default true; false: this host runs no extensions
	SearchPaths []string // roots that are scanned for manifests, the first wins; default ./extensions
	Links       []string // further roots, each one extension, as recorded by extctl install --link
	IgnoreDirs  []string // names of directories that are not entered; default node_modules, .git, target
	MaxDepth    int      // default 4: a manifest up to root/a/b/c/plugin.toml; 1 to 32
	FollowLinks bool     // follow symbolic links inside the roots; default false
	Disabled    []string // ids that are not run
	Allowlist   []string // the only ids that are run; empty: all

	Watch        Watch
	SkillsDir    string     // skills are <SkillsDir>/<name>/SKILL.md; default "": this host has none
	AgentVersion string     // the host's version for min_agent_version, strict semver; default "": the program's own
	ReservedIDs  []string   // ids the host uses itself, besides those of manifest.Reserved
	Gating       Gating     // what becomes of an extension whose requirements are not met; default skip
	InheritEnv   InheritEnv // which of the bridge's variables a stdio child gets without declaring them; default all
	Doctor       Doctor

	HeartbeatInterval    time.Duration // between two beats of an instance; default 15 s, 1 s to 5 min
	HeartbeatGraceFactor float64       // silence of this many intervals makes an instance lost; default 3, 1.5 to 100

	// Supervision holds for every extension without an entry of its own; ask SupervisionFor.
	Supervision Supervision

	// Entries are what the file says of single extensions (google) and members (google.gmail), by id. Parse has
	// completed each from its parent's entry and Supervision, so that a change of these afterwards does not
	// reach it.
	Entries map[string]Entry
}

// Roots are the directories to scan for manifests: SearchPaths, then Links.
func (c Config) Roots() []string { return slices.Concat(c.SearchPaths, c.Links) }

// Watch says what the bridge does when a manifest appears, changes or goes.
type Watch struct {
	Enabled  bool          // default true: watch, and log what a restart would change
	Debounce time.Duration // debounce_ms: a change counts when it has been quiet for this long; default 500 ms, 50 ms to 1 min
	Reload   bool          // do it, instead of only logging it; default false
}

// Gating says what becomes of an extension whose requirements are not met (docs/decisions/0007).
type Gating string

// The ways of gating.
const (
	Skip Gating = "skip" // it is not started, and shows as gated
	Warn Gating = "warn" // it is started all the same
)

// InheritEnv says which of the bridge's environment variables a stdio child gets although its manifest does not declare
// them.
type InheritEnv string

// The ways of inheriting; package gate has the lists.
const (
	InheritAll     InheritEnv = "all"     // all but those that look secret or reach services of the host
	InheritMinimal InheritEnv = "minimal" // PATH, HOME and a few others; what extctl writes into a new file
)

// Doctor bounds extctl doctor --runtime.
type Doctor struct {
	Parallel    int           // extensions examined side by side; default 4, 1 to 64
	Timeout     time.Duration // for one stdio or http extension; a longer handshake time-out of a stdio one counts more; default 30 s, 10 ms to 1 h
	BeatTimeout time.Duration // how long to wait for the beat of a nats extension; default 20 s, 10 ms to 1 h
}

// Default is the configuration of a host without a file.
func Default() Config {
	return Config{
		Enabled:              true,
		SearchPaths:          []string{"./extensions"},
		IgnoreDirs:           []string{"node_modules", ".git", "target"},
		MaxDepth:             4,
		Watch:                Watch{Enabled: true, Debounce: 500 * time.Millisecond},
		Gating:               Skip,
		InheritEnv:           InheritAll,
		Doctor:               Doctor{Parallel: 4, Timeout: 30 * time.Second, BeatTimeout: 20 * time.Second},
		HeartbeatInterval:    15 * time.Second,
		HeartbeatGraceFactor: 3,
		Supervision:          defaultSupervision(),
	}
}
