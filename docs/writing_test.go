package docs_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// TestDice runs the extension of writing-an-extension.md in each of its languages, unchanged.
func TestDice(t *testing.T) {
	t.Parallel()
	run := map[string]func(t *testing.T, file string) []string{
		"go":     func(t *testing.T, file string) []string { return buildOver(t, "./dice", file) },
		"python": func(t *testing.T, file string) []string { return []string{"python3", file} },
		"js":     func(t *testing.T, file string) []string { return []string{"node", file} },
		"sh":     func(t *testing.T, file string) []string { return []string{"sh", file} },
	}
	needs := map[string][]string{"go": {"go"}, "python": {"python3"}, "js": {"node"}, "sh": {"sh", "jq", "awk"}}
	names := map[string]string{"go": "main.go", "python": "dice.py", "js": "dice.mjs", "sh": "dice.sh"}
	found := 0
	for _, f := range fences(read(t, "writing-an-extension.md")) {
		if f.kind != "dice" {
			continue
		}
		found++
		t.Run(f.lang, func(t *testing.T) {
			t.Parallel()
			for _, program := range needs[f.lang] {
				need(t, program)
			}
			file := filepath.Join(t.TempDir(), names[f.lang])
			if err := os.WriteFile(file, []byte(f.text), 0o644); err != nil {
				t.Fatal(err)
			}
			throw(t, run[f.lang](t, file))
		})
	}
	if found != len(run) {
		t.Errorf("the page has %d of the %d languages", found, len(run))
	}
}

// throw sends an extension all kinds of requests, and then ends it with shutdown and the end of its input.
func throw(t *testing.T, command []string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	id := 0
	request := func(method, params string) (answer diceAnswer) {
		t.Helper()
		id++
		fmt.Fprintf(stdin, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", id, method, params)
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		if err := json.Unmarshal([]byte(line), &answer); err != nil || answer.ID != id {
			t.Fatalf("%s answered %s (%v)", method, line, err)
		}
		return answer
	}
	if a := request("initialize", `{"agent_version":"0.1.0","extension_id":"dice"}`); len(a.Result.Tools) != 1 || a.Result.Tools[0].Name != "roll" {
		t.Errorf("initialize answered %+v", a)
	}
	fmt.Fprintln(stdin, `{"jsonrpc":"2.0","method":"notifications/unknown"}`)
	for range 5 {
		if a := request("tools/roll", `{"sides":3}`); a.Error.Code != 0 || a.Result.Rolled < 1 || a.Result.Rolled > 3 {
			t.Errorf("three sides, and it answered %+v", a)
		}
	}
	for _, params := range []string{`{"sides":1}`, `{}`, `{"sides":"six"}`} {
		if a := request("tools/roll", params); a.Error.Code != -32602 || a.Error.Message == "" {
			t.Errorf("%s: answered %+v", params, a)
		}
	}
	if a := request("ping", `{}`); a.Error.Code != 0 {
		t.Errorf("ping answered %+v", a)
	}
	if a := request("tools/nope", `{}`); a.Error.Code != -32601 {
		t.Errorf("tools/nope answered %+v", a)
	}
	fmt.Fprint(stdin, `{"jsonrpc":"2.0","method":"shutdown"}`+"\n\n")
	stdin.Close()
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("after shutdown it wrote %q (%v)", rest, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

type diceAnswer struct {
	ID     int
	Result struct {
		Rolled int
		Tools  []struct{ Name string }
	}
	Error struct {
		Code    int
		Message string
	}
}

// TestService runs the service of the page unchanged, and calls it.
func TestService(t *testing.T) {
	t.Parallel()
	found := false
	for _, f := range fences(read(t, "writing-an-extension.md")) {
		if f.kind != "service" {
			continue
		}
		found = true
		srv := natstest.Start(t, &server.Options{Port: -1})
		file := filepath.Join(t.TempDir(), "main.go")
		if err := os.WriteFile(file, []byte(f.text), 0o644); err != nil {
			t.Fatal(err)
		}
		background(t, []string{"NATS_URL=" + srv.ClientURL()}, buildOver(t, "./service", file)[0])
		client := mesh.NewClient(srv.Connect(), mesh.ClientOptions{})
		var got json.RawMessage
		natstest.Eventually(t, "it has started", func() bool {
			var err error
			got, err = client.Call(t.Context(), "dice/flip", nil)
			return err == nil
		})
		if string(got) != `"heads"` && string(got) != `"tails"` {
			t.Fatalf("flip: %s", got)
		}
		if got, err := client.Call(t.Context(), "dice/roll", json.RawMessage(`{"sides":2}`)); err != nil || string(got) != `{"rolled":1}` && string(got) != `{"rolled":2}` {
			t.Errorf("roll: %s, %v", got, err)
		}
		if _, err := client.Call(t.Context(), "dice/roll", json.RawMessage(`{"sides":1}`)); err == nil || !strings.Contains(err.Error(), "from 2") {
			t.Errorf("a die with one side: %v", err)
		}
	}
	if !found {
		t.Error("the page has no service")
	}
}

// TestManifestsOnPages parses every manifest on a page.
func TestManifestsOnPages(t *testing.T) {
	for _, page := range []string{"writing-an-extension.md", "manifest.md", "../README.md"} {
		found := 0
		for _, f := range fences(read(t, page)) {
			if f.lang != "toml" && f.lang != "json" || strings.Contains(f.text, `"args": ["mcp"]`) { // a client's file
				continue
			}
			found++
			m, diagnostics := manifest.Parse(page, []byte(f.text), manifest.Options{})
			if f.lang == "json" {
				m, diagnostics = manifest.ParseSidecar("desk", page, []byte(f.text), manifest.Options{})
				diagnostics = slices.DeleteFunc(diagnostics, func(d manifest.Diagnostic) bool { return d.Level == manifest.Info }) // converted names
			}
			for _, d := range diagnostics {
				t.Errorf("the manifest at line %d: %v", f.line, d)
			}
			if m == nil {
				t.Errorf("%s: line %d is no manifest", page, f.line)
			}
		}
		if found == 0 {
			t.Errorf("%s shows no manifest", page)
		}
	}
}
