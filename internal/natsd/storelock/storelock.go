// Package storelock gives a store directory to one process, and tells others who has it and where that one
// listens. It is apart from natsd so that a program can look for a running server without linking one.
package storelock

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// Info says which process runs the server over a store, and where it listens.
type Info struct {
	PID   int       `json:"pid"`
	URL   string    `json:"url,omitempty"` // of clients; empty if it takes in-process connections only
	Since time.Time `json:"since"`
}

// LockedError is a store that another process uses. Two servers over one store would both write to it.
type LockedError struct {
	StoreDir string
	Holder   Info // zero if the holder has not said who it is
}

func (e *LockedError) Error() string {
	msg := "the store " + e.StoreDir + " is in use by another server"
	if e.Holder.PID != 0 {
		msg += fmt.Sprintf(" (pid %d", e.Holder.PID)
		if e.Holder.URL != "" {
			msg += ", listening on " + e.Holder.URL
		}
		msg += ")"
	}
	return msg + "; stop it, or choose another directory"
}

// The note stands beside the lock and not in it, because a locked file cannot be read on Windows.
const (
	lockFile = "extmesh.lock"
	noteFile = "extmesh.json"
)

// Lock is a store that is ours.
type Lock struct {
	dir  string
	file *flock.Flock
}

// Acquire takes the lock of the directory dir, which must exist. The error is a *LockedError if another
// process has it. Running holds the lock for an instant while it looks, hence the few tries.
func Acquire(dir string) (*Lock, error) {
	l := &Lock{dir: dir, file: flock.New(filepath.Join(dir, lockFile), flock.SetPermissions(0o600))}
	for range 5 {
		ok, err := l.file.TryLock()
		if err != nil {
			return nil, fmt.Errorf("locking %s: %w", l.file.Path(), err)
		}
		if ok {
			return l, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	holder, _ := readNote(dir)
	return nil, &LockedError{StoreDir: dir, Holder: holder}
}

// Note writes down who holds the lock; whole, so that a reader never sees half of it.
func (l *Lock) Note(i Info) error {
	data, err := json.Marshal(i)
	if err != nil {
		return err
	}
	path := filepath.Join(l.dir, noteFile)
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("noting who runs: %w", err)
	}
	return os.Rename(path+".new", path)
}

// Release removes the note and gives the lock back. It may be called again.
func (l *Lock) Release() error {
	if !l.file.Locked() {
		return nil
	}
	err := os.Remove(filepath.Join(l.dir, noteFile))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.file.Unlock())
}

func readNote(dir string) (Info, bool) {
	var i Info
	data, err := os.ReadFile(filepath.Join(dir, noteFile))
	if err != nil || json.Unmarshal(data, &i) != nil {
		return Info{}, false
	}
	return i, true
}

// Running reports which server runs over storeDir, if one does. What a server that was killed left behind
// does not count: the lock went with it.
func Running(storeDir string) (Info, bool) {
	i, ok := readNote(storeDir)
	if !ok {
		return Info{}, false
	}
	probe := flock.New(filepath.Join(storeDir, lockFile), flock.SetPermissions(0o600))
	free, err := probe.TryRLock()
	if err != nil {
		return Info{}, false
	}
	if free {
		// Closing the file gives the lock back in any case.
		_ = probe.Unlock()
		return Info{}, false
	}
	return i, true
}
