// Package config parses extensions.yaml, which configures the extensions of a host and how they run, and edits its
// lists for extctl without changing comments.
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
// docs/configuration.md describes every key for users.
//
// [Load] reports all faults of the file at once, with line and column, like a compiler. An unknown key is a fault,
// because otherwise a misspelt limit would silently have its default until it is needed. Every key is optional;
// [Default] has the defaults. Durations are written 10s or 1m30s, sizes 64MiB or in plain bytes.
//
// Relative paths (search_paths, links, skills_dir) are relative to the working directory of the program, and "~/" is
// the home directory. They are not relative to the file's own directory, because the file is usually
// config/extensions.yaml and refers to ./extensions, the directory next to config.
//
// [SetDisabled], [AddLink] and [RemoveLink] change the lists that extctl's enable, disable and install manage, under
// a lock and atomically.
package config

import (
	"net/netip"
	"slices"
	"time"
)

// DefaultPath is the path of extensions.yaml if none is given.
const DefaultPath = "config/extensions.yaml"

// Config is the extensions section of extensions.yaml. The comments have the key if it is not the field's name in
// snake case, the default, and the bounds that Parse checks. Start from Default or Load; the zero Config scans
// nothing.
type Config struct {
	Enabled bool // default true; false: this host runs no extensions
	Search
	Disabled  []string // ids that are not run
	Allowlist []string // the only ids that are run; empty: all

	Watch        Watch
	SkillsDir    string         // skills are <SkillsDir>/<name>/SKILL.md; default "": this host has none
	AgentVersion string         // the host's version for min_agent_version, strict semver; default "": the program's own
	ReservedIDs  []string       // ids that the host uses itself, in addition to manifest.Reserved
	Gating       Gating         // what happens to an extension with unmet requirements; default skip
	Secrets      Secrets        // what an extension may take from the host without a grant in its entry; default inherit
	HTTPAllow    []netip.Prefix // link-local and metadata addresses that http extensions may be reached at; default none
	InheritEnv   InheritEnv     // which of the bridge's variables a stdio child gets without declaring them; default all
	Doctor       Doctor

	HeartbeatInterval    time.Duration // between two heartbeats of an instance; default 15 s, 1 s to 5 min
	HeartbeatGraceFactor float64       // an instance is lost after this many intervals without a heartbeat; default 3, 1.5 to 100

	// MaxBuffered bounds the bytes of requests in flight and of unfinished lines of children, of all extensions of this
	// host together; default 0: a quarter of the memory that the bridge may have, at most 160 MiB. 16 MiB to 64 GiB
	MaxBuffered int64

	// Supervision is for extensions without an entry; use SupervisionFor.
	Supervision Supervision

	// Entries are the settings of single extensions (google) and members (google.gmail), by id. Parse has completed
	// each with those of its parent's entry and Supervision; later changes of these do not affect it.
	Entries map[string]Entry
}

// Search is where a host looks for manifests.
type Search struct {
	SearchPaths []string // roots that are scanned for manifests; the first has priority; default ./extensions
	Links       []string // further roots, each one extension, as recorded by extctl install --link
	IgnoreDirs  []string // names of directories that are not entered; default node_modules, .git, target
	MaxDepth    int      // default 4: a manifest up to root/a/b/c/plugin.toml; 1 to 32
	FollowLinks bool     // follow symbolic links inside the roots; default false
}

// Roots returns the directories to scan for manifests: SearchPaths, then Links.
func (s Search) Roots() []string { return slices.Concat(s.SearchPaths, s.Links) }

// Watch configures what the bridge does when a manifest is added, changed or removed.
type Watch struct {
	Enabled  bool          // default true: watch, and log which changes a restart would apply
	Debounce time.Duration // debounce_ms: wait this long after a change is found; default 500 ms, 50 ms to 1 min
	Reload   bool          // apply changes instead of only logging them; default false
	NoReload bool          // the file sets reload to false
}

// Gating is what happens to an extension with unmet requirements (docs/decisions/0007).
type Gating string

// The gating modes.
const (
	Skip Gating = "skip" // the extension is not started, and its state is gated
	Warn Gating = "warn" // the extension is started nevertheless
)

// InheritEnv selects which of the bridge's environment variables a stdio child gets without declaring them in its
// manifest.
type InheritEnv string

// The modes of inheritance; package gate has the lists.
const (
	InheritAll     InheritEnv = "all"     // all but those that look secret or reach services of the host
	InheritMinimal InheritEnv = "minimal" // PATH, HOME and a few others; what extctl writes into a new file
)

// Secrets selects which of the host's variables an extension may take, by requires.env or a placeholder, without being
// granted them by name in its entry. Files outside of its directory need a grant in any case.
type Secrets string

// The modes of granting secrets.
const (
	SecretsInherit Secrets = "inherit" // all but the mesh's own credentials
	SecretsGranted Secrets = "granted" // none but PATH, HOME and a few others
)

// Doctor configures extctl doctor --runtime.
type Doctor struct {
	Parallel         int           // extensions examined concurrently; default 4, 1 to 64
	Timeout          time.Duration // for one stdio or http extension, unless its handshake timeout is longer; default 30 s, 10 ms to 1 h
	HeartbeatTimeout time.Duration // how long to wait for the heartbeat of a nats extension; default 20 s, 10 ms to 1 h
}

// Default returns the configuration of a host without a file.
func Default() Config {
	return Config{
		Enabled:              true,
		Search:               Search{SearchPaths: []string{"./extensions"}, IgnoreDirs: []string{"node_modules", ".git", "target"}, MaxDepth: 4},
		Watch:                Watch{Enabled: true, Debounce: 500 * time.Millisecond},
		Gating:               Skip,
		Secrets:              SecretsInherit,
		InheritEnv:           InheritAll,
		Doctor:               Doctor{Parallel: 4, Timeout: 30 * time.Second, HeartbeatTimeout: 20 * time.Second},
		HeartbeatInterval:    15 * time.Second,
		HeartbeatGraceFactor: 3,
		Supervision:          defaultSupervision(),
	}
}
