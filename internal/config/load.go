package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// MaxFile is the maximum size of a configuration in bytes.
const MaxFile = document.MaxFile

// Load reads the extensions.yaml at path; an empty path is DefaultPath. If the file does not exist, it returns
// Default, and with mustExist also an Error: set it if the user named the file.
//
// The diagnostics contain all faults of the file, sorted by position. A configuration with errors must not be used;
// it is complete, with defaults in place of invalid values.
func Load(path string, mustExist bool) (Config, []manifest.Diagnostic) {
	if path == "" {
		path = DefaultPath
	}
	text, err := document.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !mustExist:
		return Default(), nil
	case errors.Is(err, fs.ErrNotExist):
		return Default(), []manifest.Diagnostic{{Level: manifest.Error, Path: path, Message: "there is no such file"}}
	case err != nil:
		return Default(), []manifest.Diagnostic{{Level: manifest.Error, Path: path, Message: "cannot be read: " + document.Reason(err).Error()}}
	}
	return Parse(path, text)
}

// Parse is Load for the content of a file; path is only for the diagnostics. It does not panic on any input, and
// takes at most about a second: it refuses a file over MaxFile, one nested deeper than any valid file, and one with
// more than five thousand keys and items.
//
// Anchors, aliases and tags are errors: no valid file needs them, and their expansion has no limit.
func Parse(path string, data []byte) (Config, []manifest.Diagnostic) {
	c := Default()
	d, top, ok := open(path, data)
	if !ok {
		return c, d.Findings()
	}
	m := top.sub("extensions")
	top.Unknown(document.Error)
	m.boolean("enabled", &c.Enabled)
	m.list("search_paths", &c.SearchPaths, wrongPath)
	m.list("links", &c.Links, wrongPath)
	m.list("ignore_dirs", &c.IgnoreDirs, wrongDirName)
	m.list("disabled", &c.Disabled, wrongID)
	m.list("allowlist", &c.Allowlist, wrongID)
	m.list("reserved_ids", &c.ReservedIDs, wrongID)
	m.integer("max_depth", &c.MaxDepth, 1, 32)
	m.boolean("follow_links", &c.FollowLinks)
	m.watch(&c.Watch)
	m.text("skills_dir", &c.SkillsDir, wrongPath)
	m.text("agent_version", &c.AgentVersion, wrongVersion)
	m.gating(&c.Gating)
	m.text("inherit_env", (*string)(&c.InheritEnv), oneOf(InheritAll, InheritMinimal))
	m.text("secrets", (*string)(&c.Secrets), oneOf(SecretsInherit, SecretsGranted))
	m.httpAllow(&c.HTTPAllow)
	m.doctor(&c.Doctor)
	m.duration("heartbeat_interval", &c.HeartbeatInterval, time.Second, 5*time.Minute)
	m.factor("heartbeat_grace_factor", &c.HeartbeatGraceFactor, 1.5, 100)
	m.size("max_buffered", &c.MaxBuffered, 16<<20, 64<<30)
	supervision := m.sub("supervision")
	supervision.supervision(&c.Supervision)
	supervision.Unknown(document.Error)
	c.Entries = m.entries(c)
	m.Unknown(document.Error)
	for _, list := range [][]string{c.SearchPaths, c.Links} {
		for i, p := range list {
			list[i] = home(p)
		}
	}
	c.SkillsDir = home(c.SkillsDir)
	return c, d.Findings()
}

func (m mapping) watch(w *Watch) {
	m = m.sub("watch")
	m.boolean("enabled", &w.Enabled)
	m.boolean("reload", &w.Reload)
	w.NoReload = !w.Reload && slices.Contains(m.Names(), "reload")
	ms := int(w.Debounce / time.Millisecond)
	m.integer("debounce_ms", &ms, 50, 60_000)
	w.Debounce = time.Duration(ms) * time.Millisecond
	m.Unknown(document.Error)
	if w.Reload && !w.Enabled {
		m.Warn(m.Key("reload"), "has no effect because watch.enabled is not true")
	}
}

func (m mapping) doctor(d *Doctor) {
	m = m.sub("doctor")
	m.integer("parallel", &d.Parallel, 1, 64)
	m.duration("timeout", &d.Timeout, instant, time.Hour)
	m.duration("heartbeat_timeout", &d.HeartbeatTimeout, instant, time.Hour)
	m.Unknown(document.Error)
}

// entries reads the entries by id. A parent comes before its members, because a member's entry starts with its parent's.
func (m mapping) entries(c Config) map[string]Entry {
	m = m.sub("entries")
	c.Entries = make(map[string]Entry, len(m.Names()))
	for _, id := range m.Names() {
		if wire.CheckID(id, true) != nil {
			m.FaultKey(m.Key(id), "%s is not an id; want that of an extension, or of a member such as google.gmail", document.Show(id))
		}
		e := c.entry(id)
		sub := m.sub(id)
		sub.supervision(&e.Supervision)
		sub.gating(&e.Gating)
		var granted []string
		sub.list("secrets", &granted, wrongGrant)
		e.Secrets = slices.Concat(e.Secrets, granted) // a member also has its parent's
		sub.Unknown(document.Error)
		e.OwnHandshakeTimeout = e.OwnHandshakeTimeout || sub.Has("handshake_timeout")
		c.Entries[id] = e
	}
	if len(c.Entries) == 0 {
		return nil
	}
	return c.Entries
}

// httpAllow reads addresses and networks.
func (m mapping) httpAllow(v *[]netip.Prefix) {
	var list []string
	m.list("http_allow", &list, func(s string) string {
		if _, ok := network(s); !ok {
			return document.Show(s) + " is neither an IP address nor a network such as 169.254.0.0/16"
		}
		return ""
	})
	for _, s := range list {
		n, _ := network(s)
		*v = append(*v, n)
	}
}

func network(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	n, err := netip.ParsePrefix(s)
	return n.Masked(), err == nil
}

var variableSyntax = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// wrongGrant checks an item of entries.<id>.secrets.
func wrongGrant(s string) string {
	path, file := strings.CutPrefix(s, "file:")
	if file && filepath.IsAbs(path) && filepath.Clean(path) == path || !file && variableSyntax.MatchString(s) {
		return ""
	}
	return "is not the name of a secret, and is not shown, because it may be one; want the name of a variable, such as GITHUB_TOKEN, or file: with an absolute path, such as file:/run/secrets/token"
}

func (m mapping) gating(g *Gating) { m.text("gating", (*string)(g), oneOf(Skip, Warn)) }

func wrongID(s string) string {
	if wire.CheckID(s, false) == nil {
		return ""
	}
	return document.Show(s) + ` is not an extension's id: a lower-case letter, then lower-case letters, digits, "_" or "-", at most 64`
}

func wrongPath(s string) string {
	if strings.TrimSpace(s) == "" || strings.ContainsRune(s, 0) {
		return "is blank; want a directory"
	}
	return ""
}

func wrongDirName(s string) string {
	if strings.TrimSpace(s) == "" || s == "." || s == ".." || strings.ContainsAny(s, `/\`) {
		return document.Show(s) + " is not the name of a directory; want one such as node_modules, without a path"
	}
	return ""
}

func wrongVersion(s string) string {
	if _, err := semver.StrictNewVersion(s); err != nil {
		return document.Show(s) + " is not a version; want strict semver, such as 1.2.0"
	}
	return ""
}

// oneOf returns a check for one of two words.
func oneOf[T ~string](a, b T) func(string) string {
	return func(s string) string {
		if s == string(a) || s == string(b) {
			return ""
		}
		return fmt.Sprintf("is %s; want %s or %s", document.Show(s), a, b)
	}
}

// home replaces a leading "~/". Without a home directory the path stays as it is, and is then not found.
func home(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		if dir, err := os.UserHomeDir(); err == nil {
			return filepath.Join(dir, rest)
		}
	}
	return path
}
