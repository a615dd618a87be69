package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// tellsExtension answers its tool with two variables and its id, after it has told them to stderr. then is what it does
// instead of answering, if it is not "".
func tellsExtension(id, requires, then string) string {
	return fmt.Sprintf(`
[plugin]
id = %q
version = "1.0.0"
[capabilities]
tools = ["env"]
[transport]
type = "stdio"
command = "sh"
args = ["-c", '''
echo "I have $TELLS_TOKEN and $OTHER_SECRET" >&2
%s
while read -r line; do
	id=${line#*\"id\":}; id=${id%%%%[,\}]*}
	case $line in
	*initialize*) r='{"server_version":"1","tools":[{"name":"env","input_schema":{"type":"object"}}],"hooks":[]}' ;;
	*) r="\"$TELLS_TOKEN,$OTHER_SECRET,$AGENT_EXTENSION_ID,$(basename "$EXTMESH_STATE_DIR")\"" ;;
	esac
	echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$r}"
done''']
[requires]
%s
`, id, then, requires)
}

// TestUpHost is a host whose extensions want secrets, lack something or come later, and that has skills: what reaches a
// child, what is told and what is not, and what a reload takes up.
func TestUpHost(t *testing.T) {
	const token, other = "hunter22hunter22", "hunter33hunter33"
	t.Setenv("TELLS_TOKEN", token)
	t.Setenv("OTHER_SECRET", other)
	dir := extensionDir(t, map[string]string{
		"with":    tellsExtension("with", `env = ["TELLS_TOKEN"]`, ""),
		"without": tellsExtension("without", "", ""),
		"dies":    tellsExtension("dies", `env = ["TELLS_TOKEN"]`, "exit 3"),
		"later":   tellsExtension("later", `bins = ["./later.sh"]`, ""),
	})
	skills := t.TempDir()
	skill := func(name, front string) {
		if err := os.MkdirAll(filepath.Join(skills, name), 0o700); err != nil {
			t.Fatal(err)
		}
		text := "---\nname: " + name + "\ndescription: What it is for.\n" + front + "---\nDo this.\n"
		if err := os.WriteFile(filepath.Join(skills, name, "SKILL.md"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	skill("good", "")
	skill("stays", "")
	skill("gated", "requires: {bins: [no-such-program-anywhere]}\n")
	skill("bad", "max_chars: many\n")
	settings := filepath.Join(t.TempDir(), "extensions.yaml")
	text := fmt.Sprintf("extensions: {skills_dir: %q, watch: {debounce_ms: 50}}", skills)
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	u := startUp(t, dir, "--listen", "0", "--data", t.TempDir(), "--name", "b1", "--log-level", "info", "--config", settings)
	u.await(t, "Ctrl-C stops everything.")
	_, rest, _ := strings.Cut(u.out.String(), "NATS listens on ")
	url, _, _ := strings.Cut(rest, ",")
	seen := &strings.Builder{} // what may hold no value
	verb := func(line string) string {
		t.Helper()
		code, stdout, stderr := extctl(t.Context(), url, strings.Fields(line)...)
		if code != 0 {
			t.Errorf("%s: exit %d, %s%s", line, code, stdout, stderr)
		}
		if !strings.HasPrefix(line, "call") {
			seen.WriteString(stdout + stderr)
		}
		return stdout
	}
	until := func(line, want string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !strings.Contains(verb(line), want); {
			if time.Now().After(deadline) {
				t.Fatalf("%s never has %q: %s", line, want, verb(line))
			}
		}
	}

	// What is declared arrives; what only looks secret does not.
	for id, want := range map[string]string{"with": token + ",,with,with", "without": ",,without,without"} {
		if got := verb("call " + id + "/env"); got != `"`+want+"\"\n" {
			t.Errorf("%s has %s, want %s", id, got, want)
		}
	}
	// Wherever its words go, the names stand for the values.
	until("logs with", "I have [TELLS_TOKEN] and")
	until("show dies --json", "stderr: I have [TELLS_TOKEN] and")
	u.await(t, "I have [TELLS_TOKEN] and")

	// A manifest that comes is only told of; a reload takes it up, and looks again for what was missing.
	until("list", "gated")
	if err := os.WriteFile(filepath.Join(dir, "later", "later.sh"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(dir, "fresh")
	if err := os.Mkdir(fresh, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(fresh, "plugin.toml"), []byte(tellsExtension("fresh", "", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	u.await(t, "a reload would take this over")
	if out := verb("list"); strings.Contains(out, "fresh") {
		t.Errorf("it was started without being asked for:\n%s", out)
	}

	// Of the skills those that this host can do, until they go.
	until("skills --json", `"stays"`) // both come in one report, and are written one after the other
	until("skills --json", `"good"`)
	out := verb("skills --json")
	if !strings.Contains(out, `"good"`) || !strings.Contains(out, `"stays"`) || strings.Contains(out, `"gated"`) || strings.Contains(out, `"bad"`) {
		t.Errorf("skills: %s", out)
	}
	u.await(t, "skill disabled: missing bins: no-such-program-anywhere")
	if err := os.RemoveAll(filepath.Join(skills, "good")); err != nil {
		t.Fatal(err)
	}
	verb("reload b1")
	verb("wait fresh --for ready")
	verb("wait later --for ready")
	if got := verb("call later/env"); got != "\",,later,later\"\n" {
		t.Errorf("later: %s", got)
	}
	until("skills --json", `"skills":[{"name":"stays"`)

	for _, said := range []string{seen.String(), u.out.String(), u.err.String()} {
		if strings.Contains(said, "hunter") {
			t.Errorf("a value was told:\n%s", said)
		}
	}
}

// TestUpRegistryConfig: what extensions.yaml says of heartbeats reaches the one who judges by them.
func TestUpRegistryConfig(t *testing.T) {
	settings := filepath.Join(t.TempDir(), "extensions.yaml")
	if err := os.WriteFile(settings, []byte("extensions: {heartbeat_interval: 2s, heartbeat_grace_factor: 7.5}"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &app{stderr: &logBuffer{}}
	for config, want := range map[string]heartbeat.Config{
		settings: {Interval: 2 * time.Second, Grace: 7.5},
		"":       {Interval: heartbeat.DefaultInterval, Grace: heartbeat.DefaultGrace},
	} {
		plan, err := a.planHost(upOptions{config: config, dirs: []string{t.TempDir()}}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		m := &ownMesh{prefix: mesh.DefaultPrefix, host: plan}
		if got := m.registryConfig(); got.Heartbeat != want || got.Prefix != m.prefix {
			t.Errorf("with %q: %+v", config, got)
		}
	}
}
