package natsd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/natsd/storelock"
)

func writeConfig(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRunConfig(t *testing.T) {
	store := t.TempDir()
	path := writeConfig(t, fmt.Sprintf("server_name: n1\nlisten: \"127.0.0.1:-1\"\njetstream { store_dir: %q }\nmax_payload: 2MB\n", store))
	dir := filepath.Join(store, "jetstream") // where the server stores its data
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { // ends with cancel
		if err := RunConfig(ctx, path, nil); err != nil {
			t.Error(err)
		}
	})
	var info storelock.Info
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); info.URL == ""; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("the server did not start")
		}
		for _, d := range []string{store, dir} {
			if i, ok := storelock.Running(d); ok {
				info = i
			}
		}
	}
	nc := connect(t, info.URL)
	if nc.ConnectedServerName() != "n1" || nc.MaxPayload() != 2<<20 {
		t.Errorf("connected to %q with a max payload of %d", nc.ConnectedServerName(), nc.MaxPayload())
	}
	var locked *storelock.LockedError
	if err := RunConfig(ctx, path, nil); !errors.As(err, &locked) {
		t.Errorf("a second server with the same store: %v, want a LockedError", err)
	}
	cancel()
	wg.Wait()
	if _, err := storelock.Acquire(store); err != nil {
		t.Errorf("the lock was not released: %v", err)
	}
}

func TestRunConfigRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"listen: [":                         "NATS configuration",
		"listen: \"127.0.0.1:-1\"":          "want jetstream",
		"no_such_setting: 1\njetstream { }": "no_such_setting",
	} {
		if err := RunConfig(t.Context(), writeConfig(t, text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
