package bridge

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/discovery"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// TestFileContentsAreRedacted: what a placeholder inserts from a file into an argument or a variable is redacted in the
// child's output, also if it is only a part of the argument.
func TestFileContentsAreRedacted(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{"token": "t0ken-t0ken\n", "key": "k3y-k3y-k3y\n"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, diags := manifest.ParseSidecar("tools", manifest.SidecarName, []byte(`{"mcpServers":{"x":{"command":"srv","args":["--token=${file:token}"],"env":{"HEADER":"Bearer ${file:key}"}}}}`), manifest.Options{})
	if m == nil {
		t.Fatal(diags)
	}
	pl := newPlanner(Config{Logger: slog.New(slog.DiscardHandler), StateDir: t.TempDir(), Settings: config.Default()})
	w, err := pl.newWorkload(discovery.Candidate{Path: filepath.Join(root, manifest.SidecarName), Root: root, Manifest: m}, m.Members()[0])
	if err != nil || w.spec.Args[0] != "--token=t0ken-t0ken" {
		t.Fatal(w, err)
	}
	got := w.redact("unrecognized arguments: --token=t0ken-t0ken; sent k3y-k3y-k3y")
	if strings.Contains(got, "t0ken") || strings.Contains(got, "k3y") || !strings.HasPrefix(got, "unrecognized arguments: --token=[") {
		t.Error(got)
	}
}

// TestLongSecretsInOutput: of a line of standard output that is cut in the middle of a secret, no part of the secret is used.
func TestLongSecretsInOutput(t *testing.T) {
	secret := strings.Repeat("abcdefghij", 450)
	redact := gate.NewRedactor([]string{"MY_TOKEN=" + secret}, []string{"MY_TOKEN"}, nil).Redact
	var noise noiseTail
	noise.add([]byte("Error: token " + secret + " rejected"))
	noise.add([]byte("short " + secret[:2000]))
	for _, text := range noise.texts(redact) {
		if strings.Contains(text, "abcdefghij") {
			t.Errorf("%.100s", text)
		}
	}
}

// TestURLsAreRedacted: what is secret in the URL of an extension is redacted in its errors, as its headers are.
func TestURLsAreRedacted(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "key"), []byte("k3y-k3y-k3y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, diags := manifest.ParseSidecar("tools", manifest.SidecarName, []byte(`{"mcpServers":{"x":{"url":"https://h.example/mcp?key=${file:key}","headers":{"X-Token":"t0ken-t0ken"}}}}`), manifest.Options{})
	if m == nil {
		t.Fatal(diags)
	}
	pl := newPlanner(Config{Logger: slog.New(slog.DiscardHandler), StateDir: t.TempDir(), Settings: config.Default()})
	w, err := pl.newWorkload(discovery.Candidate{Path: filepath.Join(root, manifest.SidecarName), Root: root, Manifest: m}, m.Members()[0])
	if err != nil || w.transport.URL != "https://h.example/mcp?key=k3y-k3y-k3y" {
		t.Fatal(w, err)
	}
	if got := w.redact("unknown key k3y-k3y-k3y, token t0ken-t0ken"); strings.Contains(got, "k3y") || strings.Contains(got, "t0ken") {
		t.Error(got)
	}
}
