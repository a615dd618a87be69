package clients

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"github.com/extmesh/extmesh/internal/document"
)

// replacement is a client's file in which the mesh takes the place of the imported servers.
type replacement struct {
	env     Env
	client  Client
	path    string
	servers []server
	keys    []string // of the mesh's entry
	entry   string
}

// Replaced is what an import does to a client's file.
type Replaced struct {
	Client  string   `json:"client"`
	Path    string   `json:"path"`
	Removed []string `json:"removed"` // the names of the servers
	Added   string   `json:"added"`   // the name of the mesh's entry
}

// Replace makes the mesh's entry take the place of the imported servers in the clients' files when the plan is applied. It checks
// that these files can be changed.
func (p *Plan) Replace(name string, entry Entry) (out []Replaced, err error) {
	for _, path := range slices.Sorted(maps.Keys(p.taken)) {
		servers := p.taken[path]
		c := servers[0].source.client
		if known, ok := Find(c.Name); !ok || path == "" || servers[0].source.keys == nil {
			return nil, fmt.Errorf("%s is not the file of a client that is known here; edit it by hand", servers[0].source.Label)
		} else {
			c = known
		}
		text, err := c.text(name, entry)
		if err != nil {
			return nil, err
		}
		r := replacement{env: p.env, client: c, path: path, servers: servers, keys: []string{c.key, name}, entry: text}
		old, err := readFile(path)
		if err == nil {
			_, _, err = r.edit(old.text)
		}
		if err != nil {
			return nil, fmt.Errorf("%s cannot be changed: %w", path, err)
		}
		p.edits = append(p.edits, r)
		done := Replaced{Client: c.Name, Path: path, Added: name}
		for _, s := range servers {
			done.Removed = append(done.Removed, s.name)
		}
		out = append(out, done)
	}
	return out, nil
}

// edit returns the new text of the file, and what changed.
func (r replacement) edit(text string) (string, []entryChange, error) {
	var changes []entryChange
	tree, err := r.client.parse(text)
	if err != nil {
		return "", nil, err
	}
	for _, s := range r.servers {
		old := entryChange{Path: s.path}
		if r.client.shape == codex {
			body, ok := document.TableTOML(text, s.path)
			if !ok {
				return "", nil, fmt.Errorf("%w: %s is not a table of its own", document.ErrEdit, s.name)
			}
			old.Old = body
		} else if raw, ok := document.MemberJSON(text, s.path); ok {
			old.Old = string(raw)
		}
		if text, err = r.client.remove(text, s.path); err != nil {
			return "", nil, err
		}
		changes = append(changes, old)
	}
	mesh := entryChange{Path: r.keys, New: r.entry}
	if now := lookup(tree, r.keys); now != nil {
		known := r.env.isMesh(r.client, r.path, r.keys[1], now)
		if !known && !slices.ContainsFunc(r.servers, func(s server) bool { return slices.Equal(s.path, r.keys) }) {
			return "", nil, &ExistsError{r.path, r.keys[0] + "." + r.keys[1]}
		}
		if known { // it stays as it is
			return text, changes, nil
		}
	}
	for name, v := range lookup(tree, r.keys[:1]) { // the mesh may have an entry with another name
		entry, _ := v.(map[string]any)
		imported := slices.ContainsFunc(r.servers, func(s server) bool { return slices.Equal(s.path, []string{r.keys[0], name}) })
		if !imported && (oursNamed(name, entry) || r.env.installed(r.client, r.path, name, entry)) {
			return text, changes, nil
		}
	}
	text, err = r.client.set(text, r.keys, r.entry)
	return text, append(changes, mesh), err
}

// ErrNotBegun means that nothing was changed, because the record for an undo could not be written.
var ErrNotBegun = errors.New("nothing was changed")

// Apply writes the extension and its secrets, which only the user can read, and changes the clients' files. UndoImport undoes it,
// also if it ends with an error other than ErrNotBegun.
func (p *Plan) Apply() error {
	rec := record{Dirs: p.missingDirs()}
	where := p.env.nextRecord()
	if len(p.Files) == 0 && len(p.edits) == 0 {
		return nil
	}
	if err := rec.save(where); err != nil { // an undo must not take an earlier import for this one
		return fmt.Errorf("%w: %w", ErrNotBegun, err)
	}
	if err := os.MkdirAll(filepath.Dir(p.Dir), 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(p.Dir, secretsDir), 0o700); err != nil {
		return err
	}
	write := func(path, text string) error {
		f := file{path: path, text: text, exists: true}
		rec.Changes = append(rec.Changes, newChange("", file{path: path}, f))
		if err := rec.save(where); err != nil {
			return err
		}
		return document.Replace(path, []byte(text), 0o600, nil)
	}
	for _, path := range p.Files {
		text := ignoreAll
		i := slices.IndexFunc(p.secrets, func(s moved) bool { return filepath.Join(p.Dir, filepath.FromSlash(s.file)) == path })
		switch {
		case path == p.manifest.path:
			continue
		case i >= 0:
			text = p.secrets[i].fileText()
		}
		if err := write(path, text); err != nil {
			return err
		}
	}
	if len(p.secrets) == 0 {
		_ = os.Remove(filepath.Join(p.Dir, secretsDir)) // fails unless it is empty
	}
	if err := p.writeManifest(&rec, where); err != nil {
		return err
	}
	for _, r := range p.edits {
		if err := r.apply(&rec, where); err != nil {
			return err
		}
	}
	return nil
}

// writeManifest writes the servers, if the file is still as it was when the plan was made.
func (p *Plan) writeManifest(rec *record, where string) error {
	if p.text == p.manifest.text {
		return nil
	}
	var entries []entryChange
	for name, m := range p.members {
		path := []string{"mcpServers", name}
		if _, there := document.MemberJSON(p.manifest.text, path); !there {
			raw, err := json.Marshal(m)
			if err != nil {
				return err
			}
			entries = append(entries, entryChange{Path: path, New: string(raw)})
		}
	}
	n := len(rec.Changes)
	_, _, err := update(p.manifest.path, false, func(old file) (string, error) {
		if old != p.manifest {
			return "", fmt.Errorf("%s: %w", old.path, errBusy)
		}
		rec.Changes = append(rec.Changes[:n], newChange("", old, file{path: old.path, text: p.text, exists: true}, entries...))
		return p.text, rec.save(where)
	})
	return err
}

func (r replacement) apply(rec *record, where string) error {
	var entries []entryChange
	n := len(rec.Changes)
	_, _, err := update(r.path, false, func(old file) (text string, err error) {
		text, entries, err = r.edit(old.text)
		if err != nil {
			return "", err
		}
		rec.Changes = append(rec.Changes[:n], newChange(r.client.Name, old, file{path: old.path, text: text, exists: true}, entries...))
		return text, rec.save(where)
	})
	return err
}

// missingDirs are the directories that Apply creates, outermost first.
func (p *Plan) missingDirs() (dirs []string) {
	for dir := filepath.Join(p.Dir, secretsDir); ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			slices.Reverse(dirs)
			return dirs
		}
		dirs = append(dirs, dir)
	}
}

// importRecords are the names of the records of imports in State, the latest last.
func (e Env) importRecords() []string {
	all, _ := fs.Glob(os.DirFS(e.State), "import-*.json") // the pattern is valid
	return all
}

// Lock makes this process the only one of the user that imports, or undoes an import, until unlock is called: PlanImport reads
// what Apply changes.
func (e Env) Lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(e.State, 0o700); err != nil {
		return nil, err
	}
	l := flock.New(filepath.Join(e.State, ".import.lock"))
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait, fmt.Errorf("another import has held the lock for %v", lockWait))
	defer cancel()
	if ok, err := l.TryLockContext(ctx, lockPoll); !ok {
		return nil, fmt.Errorf("locking %s: %w", l.Path(), cmp.Or(context.Cause(ctx), err))
	}
	return func() { _ = l.Unlock() }, nil // closes the file, which unlocks it in any case
}

// How long Lock waits, and how often it tries.
const (
	lockWait = 10 * time.Second
	lockPoll = 50 * time.Millisecond
)

func (e Env) nextRecord() string {
	n := 1
	if all := e.importRecords(); len(all) > 0 {
		_, _ = fmt.Sscanf(all[len(all)-1], "import-%d.json", &n)
		n++
	}
	return filepath.Join(e.State, fmt.Sprintf("import-%06d.json", n))
}

// ErrNothing is returned if there is no import to undo.
var ErrNothing = errors.New("there is no import to undo")

// ErrIncomplete is returned together with what was done, if not all files could be restored. Another attempt is possible.
var ErrIncomplete = errors.New("not all files were restored; remove the cause and try again")

// UndoImport undoes the last import that has not been undone: files that nothing has changed since get all their bytes of before
// or are removed, and in others only the entries are restored.
func (e Env) UndoImport() ([]Undone, error) {
	all := e.importRecords()
	if len(all) == 0 {
		return nil, ErrNothing
	}
	where := filepath.Join(e.State, all[len(all)-1])
	rec, err := load(where)
	if err != nil || rec == nil {
		return nil, errors.Join(err, ErrNothing)
	}
	done, ok := rec.undo()
	if !ok {
		return done, ErrIncomplete
	}
	return done, os.Remove(where)
}
