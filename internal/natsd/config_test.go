package natsd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/freeport"
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
	addr := freeport.Addr(t)
	path := writeConfig(t, fmt.Sprintf("server_name: n1\nlisten: %q\njetstream { store_dir: %q }\nmax_payload: 2MB\n", addr, t.TempDir()))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { // ends with cancel
		if err := RunConfig(ctx, path, nil); err != nil {
			t.Error(err)
		}
	})
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !listens(addr); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("the server did not start")
		}
	}
	nc := connect(t, "nats://"+addr)
	if nc.ConnectedServerName() != "n1" || nc.MaxPayload() != 2<<20 {
		t.Errorf("connected to %q with a max payload of %d", nc.ConnectedServerName(), nc.MaxPayload())
	}
}

func TestRunConfigRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"listen: [":                         "NATS configuration",
		"no_such_setting: 1\njetstream { }": "no_such_setting",
	} {
		if err := RunConfig(t.Context(), writeConfig(t, text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
