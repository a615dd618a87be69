// Package storelock locks a store directory for one process and records which process that is and where it listens.
// It is separate from natsd so that programs can find a running server without linking one.
package storelock

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// Info is the process that runs the server of a store, and its address.
type Info struct {
	PID   int       `json:"pid"`
	URL   string    `json:"url,omitempty"` // for clients; empty if it accepts in-process connections only
	Since time.Time `json:"since"`

	Host    string `json:"host,omitempty"`    // the machine's name; set by Note, as is Machine
	Machine string `json:"machine,omitempty"` // its id, if it has one

	Password string `json:"password,omitempty"` // of User, if the server requires it; only the user who runs it can read it here
}

// User is the name that goes with Info.Password.
const User = "extmesh"

// IsHere reports whether the process runs on this machine: machines may share the directory.
func (i Info) IsHere() bool {
	id := machineID()
	return i.Machine == "" || id == "" || i.Machine == id
}

// machineID returns the id of this machine (machine-id(5)) and of its network: containers that share the directory have no id, but
// each has a loopback address of its own. It is "" if there is neither. Tests replace it.
var machineID = func() string { // Linux only
	text, _ := os.ReadFile("/etc/machine-id")
	network, _ := os.Readlink("/proc/self/ns/net")
	return strings.TrimSpace(string(text) + " " + network)
}

// URLWithPassword returns URL with the user and password that the server requires.
func (i Info) URLWithPassword() string {
	u, err := url.Parse(i.URL)
	if err != nil || i.Password == "" {
		return i.URL
	}
	u.User = url.UserPassword(User, i.Password)
	return u.String()
}

// NotePath returns the file in storeDir that holds the Info.
func NotePath(storeDir string) string { return filepath.Join(storeDir, noteFile) }

// LockedError reports a store that another process uses. Two servers would both write to its files.
type LockedError struct {
	StoreDir string
	Holder   Info // zero if the holder has not written its note yet
}

func (e *LockedError) Error() string {
	msg := "the store " + e.StoreDir + " is in use by another server"
	if e.Holder.PID != 0 {
		msg += fmt.Sprintf(" (pid %d", e.Holder.PID)
		if e.Holder.URL != "" {
			msg += ", listening on " + e.Holder.URL
		}
		if !e.Holder.IsHere() {
			msg += ", on the machine " + e.Holder.Host
		}
		msg += ")"
	}
	return msg + "; stop it, or choose another directory"
}

// The note is a separate file because a locked file cannot be read on Windows.
const (
	lockFile = "extmesh.lock"
	noteFile = "extmesh.json"
)

// Lock is a store locked by this process.
type Lock struct {
	dir  string
	file *flock.Flock
}

// Acquire locks the directory dir, which must exist. The error is a *LockedError if another process has locked it.
// Acquire retries briefly, because Running locks the directory while it checks.
func Acquire(dir string) (*Lock, error) {
	l := &Lock{dir: dir, file: flock.New(filepath.Join(dir, lockFile), flock.SetPermissions(0o600))}
	for range 5 {
		ok, err := l.file.TryLock()
		if err != nil {
			return nil, fmt.Errorf("locking %s: %w", l.file.Path(), err)
		}
		if ok {
			_ = os.Remove(filepath.Join(dir, noteFile)) // of a holder that was killed: it is not this one's
			return l, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	holder, _ := readNote(dir)
	return nil, &LockedError{StoreDir: dir, Holder: holder}
}

// Note records the holder of the lock. It replaces the note atomically, so that no reader gets a part of it.
func (l *Lock) Note(i Info) error {
	i.Host, _ = os.Hostname() // for display only
	i.Machine = machineID()
	data, err := json.Marshal(i)
	if err != nil {
		return err
	}
	path := filepath.Join(l.dir, noteFile)
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("recording the lock's holder: %w", err)
	}
	return os.Rename(path+".new", path)
}

// Release removes the note and unlocks the directory. It may be called again.
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

// Running returns the server that runs in storeDir on this machine, if any. The note of a killed server is ignored, because its lock
// ended with it.
func Running(storeDir string) (Info, bool) {
	i, ok := readNote(storeDir)
	if !ok || !i.IsHere() {
		return Info{}, false
	}
	probe := flock.New(filepath.Join(storeDir, lockFile), flock.SetPermissions(0o600))
	free, err := probe.TryRLock()
	if err != nil {
		return Info{}, false
	}
	if free {
		// Closing the file would unlock it as well.
		_ = probe.Unlock()
		return Info{}, false
	}
	return i, true
}
