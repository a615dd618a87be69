package bridge_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
)

// childEnviron starts the extension of cfg. Its script must write its environment to $EXTMESH_STATE_DIR/env.
func childEnviron(t *testing.T, cfg bridge.Config) map[string]string {
	t.Helper()
	examine(t, cfg) // it fails, because the script does not respond
	data, err := os.ReadFile(filepath.Join(cfg.StateDir, "one", "env"))
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			env[name] = value
		}
	}
	return env
}

// TestChildEnvironment: the environment of a child does not contain the bridge's credentials.
func TestChildEnvironment(t *testing.T) {
	t.Parallel()
	const url = "nats://bridge-0:hunter22hunter22@nats:4222"
	hidden := []string{"NATS_URL", "NATS_CREDS", "XDG_CONFIG_HOME", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "REPORTS", "ONE_TOKEN"}
	for name, tt := range map[string]struct {
		inherit config.InheritEnv
		more    string
		want    []string // of hidden and EDITOR
	}{
		"all":               {config.InheritAll, "", []string{"EDITOR"}},
		"minimal":           {config.InheritMinimal, "", nil},
		"all, declared":     {config.InheritAll, "[requires]\nenv = [\"REPORTS\", \"SSH_AUTH_SOCK\"]\n", []string{"EDITOR", "REPORTS", "SSH_AUTH_SOCK"}},
		"minimal, declared": {config.InheritMinimal, "[requires]\nenv = [\"EDITOR\", \"ONE_TOKEN\"]\n", []string{"EDITOR", "ONE_TOKEN"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := examined(t, `env > "$EXTMESH_STATE_DIR/env"; env >&2`, tt.more)
			cfg.Settings.InheritEnv = tt.inherit
			cfg.Environ = append(cfg.Environ, "NATS_URL="+url, "NATS_CREDS=/etc/bridge.creds", "XDG_CONFIG_HOME=/config", "SSH_AUTH_SOCK=/agent",
				"DBUS_SESSION_BUS_ADDRESS=unix:path=/bus", "DOCKER_HOST=unix:///docker.sock", "REPORTS=pg://app:hunter33hunter33@db", "EDITOR=vi")
			env := childEnviron(t, cfg)
			var have []string
			for _, name := range append(slices.Clone(hidden), "EDITOR") {
				if _, ok := env[name]; ok {
					have = append(have, name)
				}
			}
			slices.Sort(have)
			if !slices.Equal(have, tt.want) {
				t.Errorf("the child has %q, want %q", have, tt.want)
			}
			if env["PATH"] == "" || env["AGENT_EXTENSION_ID"] != "one" {
				t.Errorf("PATH is %q, AGENT_EXTENSION_ID %q", env["PATH"], env["AGENT_EXTENSION_ID"])
			}
			for _, line := range examine(t, cfg).Stderr {
				if strings.Contains(line, "hunter") {
					t.Errorf("in its stderr: %s", line)
				}
			}
		})
	}
}
