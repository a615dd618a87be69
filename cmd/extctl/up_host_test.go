package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// envExtension returns the manifest of an extension with one tool. The tool returns two variables and the id, after it has
// written them to stderr. If then is not "", the extension runs that instead of answering.
func envExtension(id, requires, then string) string {
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
echo "I have $ENV_TOKEN and $OTHER_SECRET" >&2
%s
while read -r line; do
	id=${line#*\"id\":}; id=${id%%%%[,\}]*}
	case $line in
	*initialize*) r='{"server_version":"1","tools":[{"name":"env","input_schema":{"type":"object"}}],"hooks":[]}' ;;
	*) r="\"$ENV_TOKEN,$OTHER_SECRET,$AGENT_EXTENSION_ID,$(basename "$EXTMESH_STATE_DIR")\"" ;;
	esac
	echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$r}"
done''']
[requires]
%s
`, id, then, requires)
}

// TestUpHost runs extensions that need secrets, lack a requirement or are added later, and skills. It checks what reaches
// a child, what is printed and what is not, and what a reload applies.
func TestUpHost(t *testing.T) {
	const token, other = "hunter22hunter22", "hunter33hunter33"
	t.Setenv("ENV_TOKEN", token)
	t.Setenv("OTHER_SECRET", other)
	dir := extensionDir(t, map[string]string{
		"with":    envExtension("with", `env = ["ENV_TOKEN"]`, ""),
		"without": envExtension("without", "", ""),
		"crashes": envExtension("crashes", `env = ["ENV_TOKEN"]`, "exit 3"),
		"later":   envExtension("later", `bins = ["./later.sh"]`, ""),
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
	text := fmt.Sprintf("extensions: {skills_dir: %q, watch: {debounce_ms: 50, reload: false}}", skills)
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	data := t.TempDir()
	u := startUp(t, dir, "--listen", "0", "--data", data, "--name", "b1", "--log-level", "info", "--config", settings)
	u.await(t, "Ctrl-C stops everything.")
	url := upURL(t, data)
	seen := &strings.Builder{} // all output; must not contain a secret
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
				t.Fatalf("%s: %q is not printed: %s", line, want, verb(line))
			}
		}
	}

	// A declared variable reaches the child; one that looks secret and is not declared does not.
	for id, want := range map[string]string{"with": token + ",,with,with", "without": ",,without,without"} {
		if got := verb("call " + id + "/env"); got != `"`+want+"\"\n" {
			t.Errorf("%s has %s, want %s", id, got, want)
		}
	}
	// In all output, the values are replaced by the variables' names.
	until("logs with", "I have [ENV_TOKEN] and")
	until("show crashes --json", "stderr: I have [ENV_TOKEN] and")
	u.await(t, "I have [ENV_TOKEN] and")

	// A new manifest is only reported; a reload starts it, and checks missing requirements again.
	until("list", "gated")
	if err := os.WriteFile(filepath.Join(dir, "later", "later.sh"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(dir, "fresh")
	if err := os.Mkdir(fresh, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(fresh, "plugin.toml"), []byte(envExtension("fresh", "", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	u.await(t, "configuration changed on disk; run `extctl reload` to apply it")
	if out := verb("list"); strings.Contains(out, "fresh") {
		t.Errorf("the extension was started without a reload:\n%s", out)
	}

	// Skills are published if their requirements are met, until they are removed.
	until("skills --json", `"stays"`) // one report, but two writes to the catalog
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

	for _, text := range []string{seen.String(), u.out.String(), u.err.String()} {
		if strings.Contains(text, "hunter") {
			t.Errorf("a secret was printed:\n%s", text)
		}
	}
}
