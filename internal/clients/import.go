package clients

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/internal/plainjson"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// maxServers is the maximum number of servers of an extension.
const maxServers = 64

// Imported is what an import does with one server.
type Imported struct {
	Name    string   `json:"name"`    // in the client's file
	Source  string   `json:"source"`  // the file
	Target  string   `json:"target"`  // the id of the member, such as imported.github; "" if it is not imported
	Runs    string   `json:"runs"`    // the command, or the address, without arguments, parameters and keys
	Present bool     `json:"present"` // the extension has it already
	Needs   []string `json:"needs"`   // variables that must be set where the bridge runs
	Takes   []string `json:"takes"`   // the other variables and files of the host that it gets
	Secrets int      `json:"secrets"` // how many values were moved to files of their own
	Notes   []string `json:"notes"`
	Skipped string   `json:"skipped"` // the reason why it is not imported
}

// Plan is an import that has not been made yet.
type Plan struct {
	Dir     string // the extension's directory
	Servers []Imported
	Files   []string // that will be written, secrets among them

	env      Env
	manifest file // before
	text     string
	secrets  []moved
	taken    map[string][]server // the imported servers by the path of their file
	members  map[string]member   // by name, with those that were there
	old      map[string]bool     // the names of those that were there
	edits    []replacement
}

// PlanImport reads the sources and decides what becomes of each server, in the extension with the directory dir, whose base name
// is its id. Nothing is written.
func (e Env) PlanImport(dir string, sources []Source) (*Plan, error) {
	p := &Plan{Dir: dir, env: e, taken: map[string][]server{}, members: map[string]member{}, old: map[string]bool{}}
	id := filepath.Base(dir)
	if _, err := os.Lstat(filepath.Join(dir, manifest.FileName)); err == nil {
		return nil, fmt.Errorf("%s has a %s; choose another name with --id", dir, manifest.FileName)
	}
	var err error
	if p.manifest, err = readFile(filepath.Join(dir, manifest.SidecarName)); err != nil {
		return nil, err
	}
	if p.text = p.manifest.text; p.manifest.exists {
		if err := p.readMembers(); err != nil {
			return nil, err
		}
	}
	for i := range sources {
		if sources[i].Path == p.manifest.path {
			return nil, fmt.Errorf("%s is the file to import into", sources[i].Label)
		}
		servers, err := sources[i].servers()
		switch {
		case err != nil && sources[i].Optional:
			p.Servers = append(p.Servers, Imported{Name: "*", Source: sources[i].Label, Needs: []string{}, Takes: []string{}, Notes: []string{}, Skipped: terminal.FirstLine(err.Error())})
			continue
		case err != nil:
			return nil, err
		}
		for _, s := range servers {
			out, err := p.add(id, s)
			if err != nil {
				return nil, err
			}
			p.Servers = append(p.Servers, out)
		}
	}
	return p, p.finish(id)
}

// readMembers reads the servers that the extension has.
func (p *Plan) readMembers() error {
	tree, err := document.ParseJSON(p.text)
	if err != nil {
		return fmt.Errorf("%s: %w", p.manifest.path, err)
	}
	if lookup(tree, []string{"mcpServers"}) == nil {
		for _, key := range []string{"servers", "mcp_servers"} {
			if lookup(tree, []string{key}) != nil {
				return fmt.Errorf("%s has its servers under %q, and they would be ignored next to others: rename that key to mcpServers", p.manifest.path, key)
			}
		}
	}
	for name, v := range lookup(tree, []string{"mcpServers"}) {
		raw, err := json.Marshal(v)
		if err != nil {
			return err
		}
		var m member
		_ = json.Unmarshal(raw, &m) // one of another form is not the same as any
		p.members[name], p.old[name] = m, true
	}
	return nil
}

// add decides what becomes of one server.
func (p *Plan) add(id string, s server) (Imported, error) {
	out := Imported{Name: s.name, Source: s.source.Label, Needs: []string{}, Takes: []string{}, Notes: []string{}}
	m, notes, err := s.member()
	if p.env.installed(s.source.client, s.source.Path, s.name, s.raw) {
		err = errMesh
	}
	out.Runs = m.runs()
	if err != nil {
		out.Skipped = terminal.FirstLine(err.Error())
		return out, nil
	}
	var legal *manifest.Manifest
	if legal, out.Skipped = check(id, s.name, m); out.Skipped != "" {
		return out, nil
	}
	passed := "" // a server of this name that was there before
	for i, name := 1, legal.Plugin.Name; ; i++ {
		candidate := numbered(name, i)
		m := m.clone()
		secrets := moveSecrets(candidate, &m)
		old, taken := p.members[candidate]
		if taken && (!old.equal(m) || !p.sameSecrets(secrets)) {
			if p.old[candidate] {
				passed = cmp.Or(passed, candidate)
			}
			continue
		}
		checked, reason := check(id, candidate, m)
		if !taken && passed != "" { // another one would run the same server twice
			reason = fmt.Sprintf("%s.%s is there with other values; change it there, or use another --id", id, passed)
		}
		if !taken && len(p.members) >= maxServers {
			reason = cmp.Or(reason, fmt.Sprintf("an extension has at most %d servers; import it with another --id", maxServers))
		}
		if slices.ContainsFunc(secrets, func(s moved) bool { return len(s.value) > maxSecret }) {
			reason = cmp.Or(reason, "one of its secrets has more than 64 KiB")
		}
		if reason != "" {
			out.Skipped = reason
			return out, nil
		}
		out.Target, out.Present, out.Secrets, out.Notes = id+"."+candidate, taken, len(secrets), append(out.Notes, notes...)
		out.Needs = append(out.Needs, p.env.unset(checked.Variables())...)
		out.takes(checked.Needs())
		p.taken[s.source.Path] = append(p.taken[s.source.Path], s)
		if taken {
			return out, nil
		}
		p.secrets = append(p.secrets, secrets...)
		p.members[candidate] = m
		raw, err := plainjson.Marshal(m)
		if err == nil {
			p.text, err = document.SetJSON(p.text, []string{"mcpServers", candidate}, raw)
		}
		if err != nil {
			return out, fmt.Errorf("%s cannot be changed: %w", p.manifest.path, err)
		}
		return out, nil
	}
}

// takes records what a server gets from the host, without what it needs and its own secrets.
func (out *Imported) takes(n manifest.Needs) {
	for _, what := range append(n.Env, n.Files...) {
		if !slices.Contains(out.Needs, what) && !strings.HasPrefix(what, secretsDir+"/") {
			out.Takes = append(out.Takes, what)
		}
	}
}

// unset returns the variables that are not set.
func (e Env) unset(names []string) (out []string) {
	for _, name := range names {
		if e.getenv(name) == "" {
			out = append(out, name)
		}
	}
	return out
}

// sameSecrets reports whether the secrets of a server that is there already are these.
func (p *Plan) sameSecrets(secrets []moved) bool {
	for _, s := range secrets {
		i := slices.IndexFunc(p.secrets, func(o moved) bool { return o.file == s.file })
		if i >= 0 {
			if p.secrets[i].value != s.value {
				return false
			}
			continue
		}
		f, err := readFile(filepath.Join(p.Dir, filepath.FromSlash(s.file)))
		if err != nil || f.text != s.fileText() {
			return false
		}
	}
	return true
}

func (m member) clone() member {
	m.Args, m.Env, m.Headers = slices.Clone(m.Args), maps.Clone(m.Env), maps.Clone(m.Headers)
	return m
}

// numbered is the name of the nth server that would have this name.
func numbered(name string, n int) string {
	if n == 1 {
		return name
	}
	return fmt.Sprintf("%.28s-%d", name, n)
}

// runs describes a server without what may be secret.
func (m member) runs() string {
	if m.Command == "" {
		address, _, _ := strings.Cut(m.URL, "?")
		if reference(address) || strings.Contains(address, "@") {
			return "a URL"
		}
		return moveFromPath(address, func(_, _ string) string { return "…" })
	}
	command := m.Command[strings.LastIndexAny(m.Command, `/\`)+1:]
	word, _, found := strings.Cut(strings.TrimSpace(m.Command), " ")
	switch {
	case found && !strings.ContainsAny(word, `/\`): // a path may contain blanks
		return word
	case command != m.Command && !filepath.IsAbs(m.Command): // a program of this directory, whatever its name is
		return word
	}
	more := ""
	for name := range m.Env {
		if upper := strings.ToUpper(name); slices.ContainsFunc(steering, func(prefix string) bool { return strings.HasPrefix(upper, prefix) }) {
			more = " with variables that decide what runs"
		}
	}
	if !slices.Contains([]string{"npx", "bunx", "pnpx", "uvx", "pipx", "docker"}, command) {
		return command + more
	}
	for _, a := range m.Args {
		switch {
		case a == "-y" || a == "--yes":
			continue
		case strings.HasPrefix(a, "-") || strings.ContainsAny(a, "=:$ "): // an option may name another package
			return fmt.Sprintf("%s with %s", command, words.Plural(len(m.Args), "argument")) + more
		}
		return command + " " + a + more
	}
	return command + more
}

// steering are the beginnings of variables with which a launcher or an interpreter runs something else.
var steering = []string{"NODE_", "NPM_", "PYTHON", "UV_", "PIP_", "PIPX_", "LD_", "DYLD_", "PATH", "DOCKER_"}

// check reads a server as a bridge does; reason is why it cannot be used.
func check(id, name string, m member) (checked *manifest.Manifest, reason string) {
	raw, err := plainjson.Marshal(map[string]any{"mcpServers": map[string]member{name: m}})
	if err != nil {
		return nil, err.Error()
	}
	parsed, diags := manifest.ParseSidecar(id, manifest.SidecarName, raw, manifest.Options{})
	if parsed == nil {
		return nil, faultOf(diags)
	}
	return parsed.Members()[0], ""
}

// faultOf is why a server is refused: the fault with the longest key, since that of the whole server only refers to the others.
func faultOf(diags []manifest.Diagnostic) string {
	var fault manifest.Diagnostic
	for _, d := range diags {
		if d.Level != manifest.Info && len(d.Key) > len(fault.Key) {
			fault = d
		}
	}
	for _, d := range diags {
		if fault.Key == "" && d.Key != "" { // it is left out without a fault
			fault = d
		}
	}
	if fault.Key == "" {
		return "it cannot be used"
	}
	return strings.TrimPrefix(fault.Key, "mcpServers.") + " " + fault.Message
}

// finish completes the plan.
func (p *Plan) finish(id string) error {
	for _, dir := range []string{p.Dir, filepath.Join(p.Dir, secretsDir)} {
		if info, err := os.Lstat(dir); err == nil && !info.IsDir() { // a link in a cloned repository could lead anywhere
			return fmt.Errorf("%s is not a directory; choose another name with --id", dir)
		}
	}
	if len(p.secrets) > 0 {
		f, err := readFile(p.ignoreFile())
		switch {
		case err != nil:
			return err
		case !f.exists:
			p.Files = append(p.Files, f.path)
		case f.text != ignoreAll:
			return fmt.Errorf("%s exists already; move it away, or choose another name with --id", f.path)
		}
	}
	for _, s := range p.secrets {
		path := filepath.Join(p.Dir, filepath.FromSlash(s.file))
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s exists already; move it away, or choose another name with --id", path)
		}
		p.Files = append(p.Files, path)
	}
	if p.text != p.manifest.text {
		p.Files = append(p.Files, p.manifest.path)
		parsed, _ := manifest.ParseSidecar(id, p.manifest.path, []byte(p.text), manifest.Options{})
		if parsed == nil || parsed.Plugin.ID != id {
			return fmt.Errorf("%q cannot be the id of an extension; choose another name with --id", id)
		}
	}
	return nil
}

// ignoreFile is the file that keeps the secrets out of a git repository.
func (p *Plan) ignoreFile() string { return filepath.Join(p.Dir, secretsDir, ".gitignore") }

const ignoreAll = "*\n"

// sorted are the keys of a map.
func sorted(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
