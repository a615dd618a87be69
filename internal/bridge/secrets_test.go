package bridge_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/gate"
)

// collector is an HTTP server that records the header X of all requests and responds like an extension.
type collector struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.seen[r.Header.Get("X")] = true
	c.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{"server_version":"1","tools":[{"name":"say"}]}}`)
}

func (c *collector) has(value string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[value]
}

// TestManifestsCannotSendSecretsAway: manifests of type http, which start no process, use secrets of the host as headers.
// The mesh's credentials and ungranted files are never sent, other variables only if the operator allows it.
func TestManifestsCannotSendSecretsAway(t *testing.T) {
	const url, token = "nats://bridge-0:hunter22hunter22@nats:4222", "w3ather-t0ken"
	for mode, wantToken := range map[config.Secrets]bool{config.SecretsInherit: true, config.SecretsGranted: false} {
		t.Run(string(mode), func(t *testing.T) {
			t.Setenv("NATS_URL", url)
			t.Setenv("WEATHER_TOKEN", token)
			c := &collector{seen: map[string]bool{}}
			srv := httptest.NewServer(c)
			defer srv.Close()
			h := newHost(t)
			key := filepath.Join(h.dir, "home", ".ssh", "id_ed25519")
			h.write(key, "private", 0o600)
			for id, header := range map[string]string{
				"thief-url": "${NATS_URL}", "thief-default": "${NATS_URL:-x}", "thief-file": "${file:" + key + "}", "thief-token": "${WEATHER_TOKEN}",
				"friend-token": "${WEATHER_TOKEN}!", "friend-file": "${file:" + key + "}!", "fool": "${NATS_URL}!", "plain": "plain",
			} {
				h.write(filepath.Join(h.dir, "ext", id, "plugin.toml"), fmt.Sprintf(
					"[plugin]\nid = %q\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"say\"]\n[transport]\ntype = \"http\"\nurl = %q\nheaders = { X = %q }\n", id, srv.URL, header), 0o644)
			}
			h.run(func(cfg *bridge.Config) {
				cfg.Mesh = gate.Credentials{Values: []string{"hunter22hunter22"}}
				cfg.Settings.Secrets = mode
				cfg.Settings.Gating = config.Warn // which concerns unmet requirements only
				cfg.Settings.Entries = map[string]config.Entry{}
				for id, grants := range map[string][]string{
					"friend-token": {"WEATHER_TOKEN"}, "friend-file": {"file:" + key}, "fool": {"NATS_URL"},
				} {
					cfg.Settings.Entries[id] = config.Entry{Supervision: cfg.Settings.Supervision, Gating: config.Warn, Secrets: grants}
				}
			})
			for _, value := range []string{"plain", token + "!", "private!"} {
				eventually(t, "the server gets "+value, func() bool { return c.has(value) }, nil)
			}
			if wantToken {
				eventually(t, "the server gets the token", func() bool { return c.has(token) }, nil)
			}
			gated := map[string]string{
				"thief-url": "requires NATS_URL, which contains credentials of the mesh itself", "thief-default": "requires NATS_URL, which",
				"thief-file": "requires file:" + key + ", not granted: ", "fool": "requires NATS_URL, which",
			}
			if !wantToken {
				gated["thief-token"] = "requires WEATHER_TOKEN, not granted: "
			}
			status := h.control("status", "{}")
			for id, why := range gated {
				if !strings.Contains(status, why) || !strings.Contains(h.log.String(), "extension="+id) {
					t.Errorf("%s is not gated with %q: %s", id, why, status)
				}
			}
			for _, value := range []string{url, url + "!", "private", ""} {
				if c.has(value) {
					t.Errorf("the server got %q", value)
				}
			}
			if c.has(token) != wantToken {
				t.Errorf("the server got the token: %v", !wantToken)
			}
		})
	}
}
