package clients

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/document"
)

// record is what is needed to undo a change. It contains the replaced spans of the files, and so may contain secrets.
type record struct {
	Changes []change `json:"changes,omitempty"`
	Dirs    []string `json:"dirs,omitempty"` // that were created, outermost first
}

// change is a change of one file.
type change struct {
	Path   string `json:"path"`
	Client string `json:"client,omitempty"` // the client that the file belongs to, which decides its syntax; "" is JSON
	Before string `json:"before,omitempty"` // the hash of the file before; "" if there was none
	After  string `json:"after"`
	At     int    `json:"at"` // the offset of the span
	Old    string `json:"old,omitempty"`
	New    string `json:"new,omitempty"`

	Entries []entryChange `json:"entries,omitempty"` // for a file that has been changed since
}

// entryChange is a change of one entry; an empty text is an entry that does not exist.
type entryChange struct {
	Path []string `json:"path"`
	Old  string   `json:"old,omitempty"`
	New  string   `json:"new,omitempty"`
}

// newChange describes the difference of two contents of a file.
func newChange(client string, before, after file, entries ...entryChange) change {
	a, b := before.text, after.text
	start := 0
	for start < len(a) && start < len(b) && a[start] == b[start] {
		start++
	}
	end := 0
	for end < len(a)-start && end < len(b)-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	return change{
		Path: after.path, Client: client, Before: before.hash(), After: after.hash(),
		At: start, Old: a[start : len(a)-end], New: b[start : len(b)-end], Entries: entries,
	}
}

// save writes the record to a file of its own, which only the user can read.
func (r record) save(path string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return document.Replace(path, data, 0o600, nil)
}

// load reads a record; a missing one is nil.
func load(path string) (*record, error) {
	data, err := document.ReadRegular(os.Stat, os.OpenFile, path, 4*maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var r record
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return nil, fmt.Errorf("the record of the change, %s: %w", path, document.Reason(err))
	}
	return &r, nil
}

// restored returns the content before the change, if f still has the content after it.
func (c change) restored(f file) (string, bool) {
	end := c.At + len(c.New)
	if f.hash() != c.After || c.At < 0 || end > len(f.text) || f.text[c.At:end] != c.New {
		return "", false
	}
	text := f.text[:c.At] + c.Old + f.text[end:]
	return text, c.Before == "" || hash(text, true) == c.Before
}

// Undone is what an undo did to one file.
type Undone struct {
	Path string `json:"path"`
	// Action is restored (byte for byte), removed (a file that had not existed), edited (the file was changed since, so that only
	// the entries were restored), unchanged (it has its old content already) or left (nothing could be done, because of Reason).
	Action string `json:"action"`
	Reason string `json:"reason,omitempty"`
}

// undo restores all files, the last changed first. ok is false if there was an error with one of them; then the files of the extension
// that were written before it stay, because it may need them.
func (r record) undo() (done []Undone, ok bool) {
	ok = true
	for _, c := range slices.Backward(r.Changes) {
		if !ok && c.Client == "" {
			done = append(done, Undone{Path: c.Path, Action: "left", Reason: "another file is restored first"})
			continue
		}
		u, err := c.undo()
		if err != nil {
			u.Action, u.Reason, ok = "left", err.Error(), false
		}
		done = append(done, u)
	}
	for _, dir := range slices.Backward(r.Dirs) {
		_ = os.Remove(dir) // fails unless it is empty
	}
	return done, ok
}

func (c change) undo() (Undone, error) {
	u := Undone{Path: c.Path}
	now, err := readFile(c.Path)
	if err != nil {
		return u, err
	}
	switch now.hash() {
	case c.Before:
		u.Action = "unchanged"
		return u, nil
	case c.After:
		if c.Before == "" {
			u.Action = "removed"
			return u, os.Remove(now.path)
		}
	case "":
		u.Action, u.Reason = "left", "the file no longer exists"
		if slices.ContainsFunc(c.Entries, func(e entryChange) bool { return e.Old != "" }) { // which must not be forgotten
			return u, errors.New("the file no longer exists; restore it, or create it with {}")
		}
		return u, nil
	}
	if len(c.Entries) == 0 && now.hash() != c.After {
		u.Action, u.Reason = "left", "it was changed since"
		return u, nil
	}
	u.Action = "restored"
	_, _, err = update(c.Path, false, func(f file) (string, error) {
		if text, ok := c.restored(f); ok {
			return text, nil
		}
		u.Action = "edited"
		return c.restoreEntries(f.text)
	})
	return u, err
}

// restoreEntries puts the entries back into a file that has been changed since.
func (c change) restoreEntries(text string) (string, error) {
	client, _ := Find(c.Client)
	for _, e := range slices.Backward(c.Entries) {
		tree, err := client.parse(text)
		if err != nil {
			return "", err
		}
		now := lookup(tree, e.Path)
		switch {
		case e.New == "" && now != nil: // the user has added it again
			continue
		case e.New != "" && now != nil && !ours(now) && !client.same(now, e.New):
			return "", fmt.Errorf("%s: %s was changed since; nothing was written; edit the file by hand", c.Path, strings.Join(e.Path, "."))
		case e.Old == "":
			text, err = client.remove(text, e.Path)
		default:
			text, err = client.set(text, e.Path, e.Old)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", c.Path, err)
		}
	}
	return text, nil
}

// covers reports whether an entry has everything that was written: the client or its user may have added members.
func (c Client) covers(entry map[string]any, written string) bool {
	want, err := c.parse(written)
	if err != nil {
		return false
	}
	own := map[string]any{}
	for key := range want {
		own[key] = entry[key]
	}
	return c.same(own, written)
}

// switchedOff returns the member that switches an entry off; "" if it is on.
func switchedOff(entry map[string]any) string {
	switch {
	case entry["disabled"] == true:
		return "disabled"
	case entry["enabled"] == false:
		return "enabled"
	}
	return ""
}

// hasMore reports whether an entry still has members of the earlier one that the new one lacks.
func (c Client) hasMore(now map[string]any, earlier, written string) bool {
	old, errOld := c.parse(earlier)
	want, errWant := c.parse(written)
	for key := range old {
		if want[key] == nil && errOld == nil && errWant == nil && reflect.DeepEqual(now[key], old[key]) {
			return true
		}
	}
	return false
}

// same reports whether an entry is the one that was written.
func (c Client) same(entry map[string]any, written string) bool {
	want, err := c.parse(written)
	if err != nil {
		return false
	}
	a, errA := json.Marshal(entry)
	b, errB := json.Marshal(want)
	return errA == nil && errB == nil && string(a) == string(b)
}
