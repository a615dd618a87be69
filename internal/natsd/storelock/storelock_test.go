package storelock

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOneHolder(t *testing.T) {
	dir := t.TempDir()
	l, err := Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Acquire(dir)
	var locked *LockedError
	if !errors.As(err, &locked) || locked.Holder != (Info{}) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("second holder: %v; want a LockedError about %s, holder unknown", err, dir)
	}
	want := Info{PID: 7, URL: "nats://h:1"}
	if err := l.Note(want); err != nil {
		t.Fatal(err)
	}
	want.Host, _ = os.Hostname()
	want.Machine = machineID()
	if _, err = Acquire(dir); !errors.As(err, &locked) || locked.Holder != want {
		t.Fatalf("second holder: %v; want a LockedError with %+v", err, want)
	}
	if i, ok := Running(dir); !ok || i != want {
		t.Errorf("Running = %+v, %v", i, ok)
	}
	for range 2 {
		if err := l.Release(); err != nil {
			t.Error(err)
		}
	}
	if i, ok := Running(dir); ok {
		t.Errorf("Running = %+v after the release", i)
	}
	if l, err = Acquire(dir); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
}

// TestAnotherMachine: a home directory may be shared by machines. What runs on one of them is not running on the others.
func TestAnotherMachine(t *testing.T) {
	was := machineID
	t.Cleanup(func() { machineID = was })
	machineID = func() string { return "this one" }
	dir := t.TempDir()
	l, err := Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Release() })
	note := `{"pid":1,"url":"nats://127.0.0.1:1","since":"2026-01-01T00:00:00Z","host":"ada","machine":"another"}`
	if err := os.WriteFile(filepath.Join(dir, noteFile), []byte(note), 0o600); err != nil {
		t.Fatal(err)
	}
	if i, ok := Running(dir); ok {
		t.Errorf("Running = %+v", i)
	}
	if _, err := Acquire(dir); err == nil || !strings.Contains(err.Error(), "on the machine ada") {
		t.Errorf("a second holder: %v", err)
	}
}

func TestRunningIgnoresNoteOfCrashedServer(t *testing.T) {
	dir := t.TempDir()
	note := `{"pid":1,"url":"nats://127.0.0.1:1","since":"2026-01-01T00:00:00Z"}`
	if err := os.WriteFile(filepath.Join(dir, noteFile), []byte(note), 0o600); err != nil {
		t.Fatal(err)
	}
	if i, ok := Running(dir); ok {
		t.Errorf("Running = %+v without a lock", i)
	}
	l, err := Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Release() })
	if i, ok := Running(dir); ok {
		t.Errorf("while the next server starts: Running = %+v", i)
	}
}
