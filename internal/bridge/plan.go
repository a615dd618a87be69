package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Masterminds/semver/v3"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// plan is what this host should run, and the problems found with everything else.
type plan struct {
	workloads []*workload
	declared  []declaration
	problems  []wire.HostProblem
	skills    []wire.SkillEntry

	incomplete bool            // the search was cut short, so a missing manifest may still exist
	torn       map[string]bool // directories with a sidecar that cannot be read or parsed
	empty      map[string]bool // directories with a sidecar of which no server is used
	leftOut    map[string]bool // servers in a sidecar that have faults: the directory and the member's name
	logged     map[string]bool // the findings that are in the log
}

// ids returns the ids of what the plan runs.
func (p plan) ids() []string {
	ids := make([]string, 0, len(p.workloads))
	for _, w := range p.workloads {
		ids = append(ids, w.id())
	}
	return ids
}

// declaration is the manifest of a service that runs elsewhere and connects to NATS itself.
type declaration struct {
	path     string // of its manifest
	announce wire.Announce
}

// planner reads the manifests of one host and decides what to run. It logs what it finds, each finding once.
type planner struct {
	cfg Config
	log *slog.Logger

	mu       sync.Mutex
	settings config.Config
	logged   map[string]bool // findings of the last plan
}

// newPlanner returns the planner of a bridge. cfg has its defaults.
func newPlanner(cfg Config) *planner {
	return &planner{cfg: cfg, log: cfg.Logger, settings: cfg.Settings}
}

// config returns the settings as last read.
func (pl *planner) config() config.Config {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.settings
}

// reread reads the settings again. On an error they do not change.
func (pl *planner) reread() error {
	if pl.cfg.Reread == nil {
		return nil
	}
	settings, err := pl.cfg.Reread()
	if err != nil {
		return err
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.settings = settings
	return nil
}

// scan finds the extensions of this host.
func (pl *planner) scan(ctx context.Context) discovery.Report {
	c := pl.config()
	if !c.Enabled {
		return discovery.Report{}
	}
	return discovery.Scan(ctx, discovery.Options{
		Roots: c.SearchPaths, Links: c.Links, IgnoreDirs: c.IgnoreDirs, MaxDepth: c.MaxDepth,
		FollowLinks: c.FollowLinks, Disabled: c.Disabled, Allowlist: c.Allowlist,
		Manifest: manifest.Options{AgentVersion: pl.agentVersion(), ReservedIDs: c.ReservedIDs},
	})
}

// agentVersion is the version with which min_agent_version in manifests is compared. A development build without a
// semantic version, or with the one that Go gives to a commit without a tag, counts as the last release.
func (pl *planner) agentVersion() string {
	own := describedCommit.ReplaceAllString(pl.cfg.Version, "")
	if _, err := semver.StrictNewVersion(own); err != nil || strings.HasPrefix(own, "0.0.0-") {
		own = lastRelease
	}
	return cmp.Or(pl.config().AgentVersion, own)
}

const lastRelease = "0.1.0"

// describedCommit is what git describe appends to the tag before a commit. As a semantic version it would be lower than the tag.
var describedCommit = regexp.MustCompile(`-\d+-g[0-9a-f]+$`)

// makePlan reads everything that determines what to run. A faulty file becomes a diagnostic and does not affect the others.
func (pl *planner) makePlan(ctx context.Context) plan {
	report := pl.scan(ctx)
	p := plan{incomplete: report.Incomplete, torn: map[string]bool{}, empty: map[string]bool{}, leftOut: map[string]bool{}, logged: map[string]bool{}}
	for _, d := range report.Diagnostics {
		pl.addDiagnostic(&p, d)
		if manifest.IsWithoutServers(d) {
			p.empty[filepath.Dir(d.Path)] = true
		}
		if member, ok := manifest.LeftOut(d); ok {
			p.leftOut[filepath.Join(filepath.Dir(d.Path), member)] = true
		}
		if d.Level == manifest.Warn && d.Key == "" && filepath.Base(d.Path) == manifest.SidecarName {
			p.torn[filepath.Dir(d.Path)] = true
		}
	}
	for _, c := range report.Candidates {
		for _, m := range append([]*manifest.Manifest{c.Manifest}, c.Manifest.Members()...) {
			pl.addManifest(&p, c, m)
		}
	}
	pl.addSkills(&p)
	pl.mu.Lock()
	pl.logged = p.logged
	pl.mu.Unlock()
	return p
}

// addManifest adds the workload of a manifest to p, or a problem if it cannot be run.
func (pl *planner) addManifest(p *plan, c discovery.Candidate, m *manifest.Manifest) {
	w, err := pl.newWorkload(c, m)
	if err != nil {
		if pl.isNew(p, m.Plugin.ID, err.Error()) {
			pl.log.Error("extension cannot be started", "extension", m.Plugin.ID, "path", c.Path, "error", err)
		}
		p.problems = append(p.problems, wire.HostProblem{ID: m.Plugin.ID, Path: c.Path, Kind: "invalid", Message: err.Error()})
		return
	}
	pl.logMissing(p, w)
	if m.Transport.Type == manifest.NATS {
		p.declared = append(p.declared, declaration{c.Path, w.announce})
		return
	}
	if w.gated != "" {
		p.problems = append(p.problems, wire.HostProblem{ID: w.id(), Path: c.Path, Kind: "gated", Message: w.gated})
	}
	p.workloads = append(p.workloads, w)
}

// newWorkload prepares the workload of a manifest: it checks the requirements, replaces placeholders and filters the
// environment.
func (pl *planner) newWorkload(c discovery.Candidate, m *manifest.Manifest) (*workload, error) {
	settings := pl.config()
	missing := pl.check(m, c.Root)
	transport := m.Transport
	var absent error
	if !missing.Refused() { // otherwise it is not started and keeps its placeholders
		resolved, err := pl.resolve(m, c.Root)
		switch {
		case err == nil:
			transport = resolved
		case errors.Is(err, fs.ErrNotExist): // each run tries again
			absent = err
		default:
			return nil, err
		}
	}
	s := settings.SupervisionFor(m.Plugin.ID)
	w := &workload{
		path:     c.Path,
		announce: pl.announcement(m),
		dialect:  transport.Dialect,
		declared: m.Capabilities,
		limits: limits{
			start: settings.StartLimit(m.Plugin.ID, transport), call: s.CallTimeout, maxCall: s.MaxCallTimeout,
			maxInflight: s.MaxInflight, maxLine: int(s.MaxLine), maxResult: int(s.MaxResult), hang: s.HangTimeout,
			drain: min(s.ShutdownGrace, childDrain),
		},
		policy: s.Policy, replicas: s.Replicas, grace: s.ShutdownGrace, replicaSet: new(replicaSet),
	}
	w.transport, w.missing, w.httpAllow = transport, missing, settings.HTTPAllow
	if len(m.Needs().Files) > 0 {
		w.files = &fileTexts{again: func() (*workload, error) { return pl.newWorkload(c, m) }, absent: absent,
			secrets: make([]atomic.Pointer[func(string) string], max(1, w.replicas))}
	}
	w.root, _ = os.Stat(c.Root)
	if pl.gates(m, missing) {
		w.gated = missing.String()
	}
	switch transport.Type {
	case manifest.Stdio:
		if err := pl.prepareChild(w, c, m); err != nil {
			return nil, err
		}
	case manifest.HTTP:
		w.prepareRemote(pl.cfg.Environ, m)
	case "": // a container; replicas of it would have no use
		w.replicas = 1
	}
	if absent != nil { // the error names placeholders, which are no secrets
		w.redact = nil
	}
	return w, nil
}

// check checks the requirements of m and its access to this host's files and variables.
func (pl *planner) check(m *manifest.Manifest, root string) gate.Result {
	host := pl.cfg.Gate
	host.Grants = pl.grants(m)
	return host.CheckManifest(m, root)
}

// gates reports whether m is not started because of the result of check.
func (pl *planner) gates(m *manifest.Manifest, r gate.Result) bool {
	return r.Refused() || !r.OK() && pl.config().GatingFor(m.Plugin.ID) == config.Skip
}

// resolve returns m's transport with its placeholders replaced.
func (pl *planner) resolve(m *manifest.Manifest, root string) (manifest.Transport, error) {
	t, _, err := m.Resolve(manifest.Expander{Root: root, AgentVersion: pl.agentVersion(), Files: pl.grants(m).Files()})
	return t, err
}

// grants returns the files and variables of this host that m may use.
func (pl *planner) grants(m *manifest.Manifest) gate.Grants {
	c := pl.config()
	return gate.Grants{Strict: c.Secrets == config.SecretsGranted, Allowed: c.GrantsFor(m.Plugin.ID), Mesh: pl.cfg.Mesh}
}

// childDrain is how long a stop waits for calls in flight before the child is told to exit. With the default grace, and a
// second from SIGTERM to SIGKILL, a stop takes at most five seconds.
const childDrain = 500 * time.Millisecond

func (pl *planner) announcement(m *manifest.Manifest) wire.Announce {
	dialect := m.Transport.Dialect
	if dialect != manifest.MCP {
		dialect = manifest.Ext
	}
	a := wire.Announce{
		SchemaVersion: wire.SchemaVersion,
		ID:            m.Plugin.ID, Version: m.Plugin.Version,
		About:  wire.About{Name: m.Plugin.Name, Description: m.Plugin.Description, Priority: m.Plugin.Priority},
		Parent: m.Parent, Host: pl.cfg.Host, Bridge: pl.cfg.Name,
		Transport: string(m.Transport.Type), Dialect: string(dialect), SubjectPrefix: m.Transport.SubjectPrefix,
		Features:     []string{wire.FeatureStream, wire.FeatureCancel, wire.FeatureInstance},
		ManifestHash: m.Hash,
		Capabilities: wire.Capabilities{Channels: m.Capabilities.Channels, Providers: m.Capabilities.Providers},
		Context:      wire.Context{Passthrough: m.Context.Passthrough},
	}
	switch m.Transport.Type {
	case manifest.NATS: // the service announces its own features and location
		a.Features, a.Host, a.Bridge = nil, "", ""
	case "": // a container; its members run here
		a.Transport = string(manifest.Stdio)
	}
	return a
}

// prepareChild sets the spec of a stdio child.
func (pl *planner) prepareChild(w *workload, c discovery.Candidate, m *manifest.Manifest) error {
	state, err := gate.StateDir(pl.cfg.StateDir, w.id()) // each run makes it: it may have been removed, or its volume may come later
	if err != nil {
		return err
	}
	t := w.transport
	options := pl.envOptions(m, t)
	options.AgentVersion, options.ExtensionID, options.StateDir = pl.agentVersion(), w.id(), state
	env, stripped := gate.Env(pl.cfg.Environ, options)
	if len(stripped) > 0 {
		pl.log.Debug("secret-like variables withheld from the child", "extension", w.id(), "names", stripped)
	}
	values, names := map[string]string{}, gate.Declared(m)
	if !w.missing.Refused() { // resolve has limited them
		values = pl.fileContents(m, c.Root)
	}
	names = slices.AppendSeq(names, maps.Keys(values))
	maps.Copy(values, t.Env)
	w.redact = gate.NewRedactor(pl.cfg.Environ, names, values).Redact
	w.spec = child.Spec{
		Command: t.Command, Args: t.Args, Dir: cmp.Or(t.Cwd, c.Root), Env: env, Grace: w.grace, Redact: w.redact,
	}
	if dir, err := filepath.Abs(w.spec.Dir); err == nil && t.Env["PWD"] == "" && !slices.Contains(m.Requires.Env, "PWD") {
		for i, kv := range env {
			if strings.HasPrefix(kv, "PWD=") { // the bridge's, which some programs take for their working directory
				env[i] = "PWD=" + dir
			}
		}
	}
	return nil
}

// makeStateDir makes the state directory of a child.
func (pl *planner) makeStateDir(id string) error {
	_, err := gate.MakeStateDir(pl.cfg.StateDir, id)
	return err
}

// fileContents returns the contents that placeholders such as ${file:/run/secrets/token} insert into the command line and the
// variables of m's child, by the text of the placeholder. They are nearly always secrets.
func (pl *planner) fileContents(m *manifest.Manifest, root string) map[string]string {
	contents := map[string]string{}
	e := manifest.Expander{Root: root, Files: pl.grants(m).Files()}
	for _, path := range m.Needs().Files {
		if content, _, err := e.Expand("${file:" + path + "}"); err == nil { // otherwise the child is not started
			contents["file:"+path] = content
		}
	}
	return contents
}

// envOptions returns which of the bridge's variables m's child inherits, and which its manifest sets.
func (pl *planner) envOptions(m *manifest.Manifest, t manifest.Transport) gate.EnvOptions {
	return gate.EnvOptions{Minimal: pl.config().InheritEnv == config.InheritMinimal, Allow: m.Requires.Env, Add: t.Env, Mesh: pl.cfg.Mesh}
}

// addSkills adds this host's skills to p.
func (pl *planner) addSkills(p *plan) {
	dir := pl.config().SkillsDir
	if dir == "" {
		return
	}
	skills, diagnostics := discovery.ScanSkills(dir)
	for _, d := range diagnostics {
		pl.addDiagnostic(p, d)
	}
	for _, s := range skills {
		if len(p.skills) == wire.MaxInventorySkills { // registries refuse a message with more
			pl.addDiagnostic(p, manifest.Diagnostic{Level: manifest.Warn, Path: dir, Message: fmt.Sprintf("has more than %d skills; the others are left out", wire.MaxInventorySkills)})
			break
		}
		if missing := pl.cfg.Gate.Check(s.Requires, filepath.Dir(s.Path), nil); !missing.OK() {
			if pl.isNew(p, "skill "+s.Dir, missing.String()) {
				gate.LogSkillDisabled(pl.log, s.Dir, missing)
			}
			continue
		}
		p.skills = append(p.skills, wire.SkillEntry{Name: s.Name, Dir: s.Dir, Description: s.Description, Body: s.Body})
	}
}

// isInSameDir reports whether v has the directory of w, and not another one of that name, which an update has put in its place.
func (w *workload) isInSameDir(v *workload) bool {
	return w.root == nil || v.root == nil || os.SameFile(w.root, v.root)
}

// equal reports whether v would run in the same way as w, so that a new plan leaves w running.
func (w *workload) equal(v *workload) bool {
	return w.announce.ManifestHash == v.announce.ManifestHash && w.gated == v.gated &&
		w.limits == v.limits && w.grace == v.grace && w.policy == v.policy && w.replicas == v.replicas && reflect.DeepEqual(w.transport, v.transport) && slices.Equal(w.httpAllow, v.httpAllow) &&
		w.spec.Command == v.spec.Command && w.spec.Dir == v.spec.Dir && w.isInSameDir(v) &&
		slices.Equal(w.spec.Args, v.spec.Args) && slices.Equal(w.spec.Env, v.spec.Env)
}
