package clients

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/extmesh/extmesh/internal/document"
)

// Installed is what Install or Uninstall does to one file.
type Installed struct {
	Client string `json:"client"`
	Path   string `json:"path"`
	Scope  Scope  `json:"scope"`
	Key    string `json:"key"` // of the entry, such as mcpServers.mesh
	// Action is added, replaced, removed, restored (the whole file, byte for byte, or the entry that was there before) or
	// unchanged.
	Action string `json:"action"`
	Entry  string `json:"entry,omitempty"` // as it is in the file after Install
}

// ExistsError is returned if the name of the entry belongs to another server.
type ExistsError struct{ Path, Key string }

func (e *ExistsError) Error() string {
	return fmt.Sprintf("%s: %s is another server", e.Path, e.Key)
}

// EditError is returned for a file that was not changed; Lines are what to write by hand.
type EditError struct {
	Path, Lines string
	Err         error
}

func (e *EditError) Error() string { return fmt.Sprintf("%s was not changed: %v", e.Path, e.Err) }

func (e *EditError) Unwrap() error { return e.Err }

// Setup describes an installation.
type Setup struct {
	Client Client
	Scope  Scope
	Name   string // of the entry
	Entry  Entry
	DryRun bool
}

// Install puts the entry for the mesh into the client's file. An entry of that name which is not the mesh's is an *ExistsError; a
// file that cannot be changed is an *EditError.
func (e Env) Install(s Setup) (out Installed, err error) {
	c := s.Client
	path, ok := e.Path(c, s.Scope)
	if !ok {
		return out, fmt.Errorf("%s has no file for a project", c.Title)
	}
	text, err := c.text(s.Name, s.Entry)
	if err != nil {
		return out, err
	}
	keys := []string{c.key, s.Name}
	out = Installed{Client: c.Name, Path: path, Scope: s.Scope, Key: c.key + "." + s.Name, Entry: text}
	edit := func(old file) (string, error) {
		changed, err := e.install(c, old, keys, text, &out)
		if err == nil && !s.DryRun && out.Action != "unchanged" { // first, so that each change can be undone
			err = e.remember(c, old, file{path: old.path, text: changed, exists: true}, entryChange{Path: keys, New: text})
		}
		return changed, err
	}
	_, _, err = update(path, s.DryRun, edit)
	if _, other := errors.AsType[*ExistsError](err); err != nil && !other {
		by, _ := c.set("", keys, text)
		err = &EditError{Path: path, Lines: by, Err: err}
	}
	return out, err
}

// install returns the text with the entry.
func (e Env) install(c Client, old file, keys []string, entry string, out *Installed) (string, error) {
	tree, err := c.parse(old.text)
	if err != nil {
		return "", err
	}
	out.Action = "added"
	if now := lookup(tree, keys); now != nil {
		out.Action = "replaced"
		switch {
		case c.covers(now, entry) && !c.hasMore(now, e.written(old.path, keys[1]), entry):
			if off := switchedOff(now); off != "" {
				return c.remove(old.text, append(keys, off))
			}
			out.Action = "unchanged"
			return old.text, nil
		case !e.isMesh(c, old.path, keys[1], now):
			return "", &ExistsError{out.Path, out.Key}
		}
	}
	return c.set(old.text, keys, entry)
}

// written is the text of an entry as Install has written it last; "" if that is not known.
func (e Env) written(path, name string) string {
	rec, err := load(e.recordPath(path, name))
	if err != nil || rec == nil || len(rec.Changes) != 1 {
		return ""
	}
	return rec.Changes[0].Entries[0].New
}

// isMesh reports whether an entry is the mesh's.
func (e Env) isMesh(c Client, path, name string, entry map[string]any) bool {
	return ours(entry) || e.installed(c, path, name, entry)
}

// installed reports whether an entry is as Install has written it. Its URL can be that of another machine.
func (e Env) installed(c Client, path, name string, entry map[string]any) bool {
	written := e.written(path, name)
	return written != "" && c.covers(entry, written)
}

// recordPath is where the record of an entry in a client's file is.
func (e Env) recordPath(path, name string) string {
	if target, err := document.Target(path); err == nil {
		path = target
	}
	sum := sha256.Sum256([]byte(path + "\x00" + name))
	return filepath.Join(e.State, "install-"+hex.EncodeToString(sum[:8])+".json")
}

// remember records an installation. If there is an earlier one of the same entry and nothing else has changed the file since, the
// record leads to the content before that.
func (e Env) remember(c Client, before, after file, entry entryChange) error {
	where := e.recordPath(after.path, entry.Path[1])
	earlier, err := load(where)
	if err != nil {
		return err
	}
	replaces := false
	if earlier != nil && len(earlier.Changes) == 1 {
		old := earlier.Changes[0]
		if text, ok := old.restored(before); ok {
			before = file{path: before.path, text: text, exists: old.Before != ""}
		} else if tree, err := c.parse(before.text); err == nil {
			now := lookup(tree, entry.Path)
			replaces = ours(now) || c.covers(now, old.Entries[0].New)
		}
	}
	done := newChange(c.Name, before, after, entry)
	if replaces {
		done.After = "" // no content without the mesh's entry is known: only the entry is taken out
	}
	return record{Changes: []change{done}}.save(where)
}

// Uninstall takes the mesh's entry out of the client's file. If nothing has changed the file since Install, it has all bytes of
// before then; otherwise, or if the client had changed the file between two calls of Install, only the entry changes. An entry of that name which is not the mesh's is an *ExistsError.
func (e Env) Uninstall(s Setup) (out Installed, err error) {
	c := s.Client
	path, ok := e.Path(c, s.Scope)
	if !ok {
		return out, fmt.Errorf("%s has no file for a project", c.Title)
	}
	keys := []string{c.key, s.Name}
	out = Installed{Client: c.Name, Path: path, Scope: s.Scope, Key: c.key + "." + s.Name, Action: "unchanged"}
	now, err := readFile(path)
	if err != nil || !now.exists {
		return out, err
	}
	where := e.recordPath(now.path, s.Name)
	rec, unreadable := load(where)
	if rec != nil && len(rec.Changes) == 1 {
		if _, ok := rec.Changes[0].restored(now); ok {
			out.Action = "restored"
			if s.DryRun {
				return out, nil
			}
			if done, ok := rec.undo(); !ok {
				return out, errors.New(done[0].Reason)
			}
			return out, os.Remove(where)
		}
	}
	err = e.takeOut(c, path, keys, s.DryRun, &out)
	if err == nil && out.Action == "removed" && !s.DryRun {
		_ = os.Remove(where) // it no longer describes the file; it may not exist
	}
	if _, isOther := errors.AsType[*ExistsError](err); isOther && unreadable != nil { // the record might show that it is the mesh's
		err = unreadable
	}
	return out, err
}

// takeOut removes only the entry.
func (e Env) takeOut(c Client, path string, keys []string, dryRun bool, out *Installed) error {
	_, _, err := update(path, dryRun, func(old file) (string, error) {
		tree, err := c.parse(old.text)
		if err != nil {
			return "", &EditError{Path: path, Err: err}
		}
		switch now := lookup(tree, keys); {
		case now == nil:
			return old.text, nil
		case !e.isMesh(c, path, keys[1], now):
			return "", &ExistsError{path, out.Key}
		}
		out.Action = "removed"
		text, err := c.remove(old.text, keys)
		if err != nil {
			return "", &EditError{Path: path, Err: err}
		}
		return text, nil
	})
	return err
}

// State describes a client on this machine.
type State struct {
	Client string   `json:"client"`
	Title  string   `json:"title"`
	Path   string   `json:"path"`
	Scope  Scope    `json:"scope"`
	Found  bool     `json:"found"`   // the file, or for the user's file its directory, exists
	Mesh   string   `json:"mesh"`    // the name of the mesh's entry; "" if there is none
	Others []string `json:"servers"` // the names of the other servers
	Error  string   `json:"error,omitempty"`
}

// States describes the files of all clients: the user's, and those of the project that exist.
func (e Env) States() (all []State) {
	for _, c := range Clients {
		for _, src := range e.files(c) {
			s := State{Client: c.Name, Title: c.Title, Path: src.Path, Scope: src.scope, Others: []string{}}
			f, err := readFile(s.Path)
			if err != nil {
				s.Found, s.Error = true, err.Error()
			} else if s.Found = f.exists; s.Found {
				e.read(&s, c, f.text)
			} else if s.Scope == User && filepath.Dir(s.Path) != e.Home {
				info, err := os.Stat(filepath.Dir(s.Path))
				s.Found = err == nil && info.IsDir()
			}
			if s.Found || s.Scope == User {
				all = append(all, s)
			}
		}
	}
	return all
}

func (e Env) read(s *State, c Client, text string) {
	tree, err := c.parse(text)
	if err != nil {
		s.Error = err.Error()
		return
	}
	servers := lookup(tree, []string{c.key})
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		if entry, _ := servers[name].(map[string]any); oursNamed(name, entry) || e.installed(c, s.Path, name, entry) {
			s.Mesh = name
		} else {
			s.Others = append(s.Others, name)
		}
	}
}
