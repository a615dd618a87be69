package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/semver"

	"github.com/extmesh/extmesh/internal/doctor"
)

// newExt creates the extension my-ext in a language that needs the program, and returns its directory.
func newExt(t *testing.T, program string, flags ...string) string {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir := t.TempDir()
	if code, _, stderr := extctl(t.Context(), "", append([]string{"new", "my-ext", "--dir", dir}, flags...)...); code != 0 {
		t.Fatal(stderr)
	}
	return filepath.Join(dir, "my-ext")
}

// checkRuntime requires that doctor --runtime finds two tools.
func checkRuntime(t *testing.T, dir string) {
	t.Helper()
	code, stdout, stderr := extctl(t.Context(), "", "doctor", "--runtime", "--timeout", "5m", "--json", "--state-dir", t.TempDir(), dir)
	var out struct {
		Results     []doctor.Result
		Diagnostics []json.RawMessage
	}
	if err := json.Unmarshal([]byte(stdout), &out); err != nil {
		t.Fatal(err)
	}
	if code != 0 || len(out.Results) != 1 || len(out.Diagnostics) != 0 || out.Results[0].Detail != "2 tools, dialect ext" {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
}

// runIn runs a program in dir and returns its output.
func runIn(t *testing.T, dir string, env []string, stdin string, args ...string) (stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	var out, failed bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), env...), strings.NewReader(stdin), &out, &failed
	if err := cmd.Run(); err != nil {
		t.Errorf("%s: %v\n%s%s", strings.Join(args, " "), err, out.Bytes(), failed.Bytes())
	}
	return out.String(), failed.String()
}

// nodeRunsTypeScript reports whether node on this machine needs no compiler.
func nodeRunsTypeScript(t *testing.T) bool {
	out, err := exec.CommandContext(t.Context(), "node", "--version").Output()
	return err == nil && semver.Compare(strings.TrimSpace(string(out)), "v22.18.0") >= 0
}

// TestNew creates an extension in each language, checks it with doctor --runtime, and runs its test. A tool that fails then
// gives the caller the cause, and standard error the place.
func TestNew(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		lang                string
		run, test           []string
		file, greets, fails string // the line of greet that is replaced by one that fails
		cause, place        string
	}{
		{"go", []string{"go", "run", "."}, []string{"go", "test"}, "main.go", `return map[string]string{"greeting": "Hello, " + a.Name + "!"}, nil`, `panic("kaput")`, `panic: kaput`, "main.greet("},
		{"py", []string{"python3", "main.py"}, []string{"python3", "-m", "unittest"}, "main.py", `return {"greeting"`, "print('noise')\n    return {}['kaput'] or {'greeting'", `KeyError: 'kaput'`, ", in greet\n"},
		{"js", []string{"node", "main.mjs"}, []string{"node", "--test"}, "tools.mjs", "return { greeting", "console.log('noise');\n  throw new RangeError('kaput') ?? { greeting", `RangeError: kaput`, "tools.mjs:9:9"},
		{"sh", []string{"sh", "main.sh"}, []string{"sh", "test.sh"}, "", "", "", "", ""},
	} {
		t.Run(test.lang, func(t *testing.T) {
			dir := newExt(t, test.run[0], "--lang", test.lang)
			checkRuntime(t, dir)
			env := []string{"GOWORK=off", "GOFLAGS="}
			runIn(t, dir, env, "", test.test...)
			if test.file == "" {
				return
			}
			file := filepath.Join(dir, test.file)
			text, err := os.ReadFile(file)
			if err != nil || !strings.Contains(string(text), test.greets) {
				t.Fatalf("%v\n%s", err, text)
			}
			if err := os.WriteFile(file, []byte(strings.Replace(string(text), test.greets, test.fails, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			stdout, stderr := runIn(t, dir, env, `{"jsonrpc":"2.0","id":1,"method":"tools/greet","params":{"name":"Ada"}}`+"\n", test.run...)
			var answer struct{ Error struct{ Message string } }
			if err := json.Unmarshal([]byte(stdout), &answer); err != nil || answer.Error.Message != test.cause || !strings.Contains(stderr, test.place) {
				t.Errorf("%v: %s%s", err, stdout, stderr)
			}
		})
	}
}

// TestNewPrograms: a tool starts a program that reads its standard input, which must not contain the requests; and each request
// is answered, also if the result is not JSON.
func TestNewPrograms(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		lang, program, file, greets, reads, want string
	}{
		{"python", "python3", "main.py", `return {"greeting"`, "__import__('subprocess').run(['cat'])\n    return float('nan') or {'greeting'", "not JSON compliant"},
		{"shell", "sh", "main.sh", `name=$(string`, `cat; name=$(string`, "Hello, Ada!"},
	} {
		dir := newExt(t, test.program, "--lang", test.lang)
		file := filepath.Join(dir, test.file)
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), test.greets) {
			t.Fatalf("%v\n%s", err, text)
		}
		if err := os.WriteFile(file, []byte(strings.Replace(string(text), test.greets, test.reads, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		request := `{"jsonrpc":"2.0","id":1,"method":"tools/greet","params":{"name":"Ada"}}` + "\n"
		stdout, stderr := runIn(t, dir, nil, request+request, test.program, test.file)
		if strings.Count(stdout, test.want) != 2 {
			t.Errorf("%s: %s%s", test.lang, stdout, stderr)
		}
	}
}

// TestNewHelpers: the helpers of Python and Node pass on a tool's default, text with a line separator, a tool named list, and an
// exit; each request is answered.
func TestNewHelpers(t *testing.T) {
	t.Parallel()
	for program, file := range map[string]struct{ lang, name, text string }{
		"python3": {"python", "main.py", `
import sys
from extmesh import run, tool

@tool()
def list(text: str, sides: int = 6) -> dict:
    """Lists."""
    return {"sides": sides, "length": len(text)}

@tool()
def leave() -> dict:
    """Leaves."""
    sys.exit("went")

run()
`},
		"node": {"node", "main.mjs", `
import { run, tool } from "./extmesh.mjs";
tool("list", "Lists.", { text: { type: "string" }, sides: { type: "integer", default: 6 } }, ({ text, sides }) => ({ sides, length: text.length }));
tool("leave", "Leaves.", {}, () => { throw new Error("went"); });
run();
`},
	} {
		dir := newExt(t, program, "--lang", file.lang)
		if err := os.WriteFile(filepath.Join(dir, file.name), []byte(file.text), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, stderr := runIn(t, dir, nil, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list","arguments":{"text":"a`+"\u2028"+`b"}}}`+"\n"+
			`{"jsonrpc":"2.0","id":2,"method":"tools/leave"}`+"\n", program, file.name)
		if plain := strings.ReplaceAll(stdout, " ", ""); !strings.Contains(plain, `"result":{"sides":6,"length":3}`) || strings.Count(plain, `"id":`) != 2 || !strings.Contains(plain, "went") {
			t.Errorf("%s: %s%s", program, stdout, stderr)
		}
	}
}

// TestNewPythonTypes: the helper of Python describes parameters with several types, and answers a request with a number that int()
// refuses.
func TestNewPythonTypes(t *testing.T) {
	t.Parallel()
	dir := newExt(t, "python3", "--lang", "python")
	err := os.WriteFile(filepath.Join(dir, "main.py"), []byte(`
from typing import Literal, Optional
from extmesh import run, tool

@tool()
def pick(n: Optional[int] = None, kind: Literal["a", "b"] = "a", *rest, **more) -> dict:
    """Picks."""
    return {"kind": kind}

run()
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr := runIn(t, dir, nil, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`+"\n"+
		`{"jsonrpc":"2.0","id":2,"method":"tools/pick","params":{"n":`+strings.Repeat("1", 5000)+`}}`+"\n", "python3", "main.py")
	plain := strings.ReplaceAll(stdout, " ", "")
	if !strings.Contains(plain, `"properties":{"n":{"anyOf":[{"type":"integer"},{"type":"null"}]},"kind":{"enum":["a","b"]}},"required":[]`) || !strings.Contains(plain, `"result":{"kind":"a"}`) {
		t.Errorf("%s%s", stdout, stderr)
	}
}

// TestNewServers runs MCP servers, and extensions that a bridge calls over HTTP, and calls a tool of each.
func TestNewServers(t *testing.T) {
	t.Parallel()
	roots := t.TempDir()
	var ids []string
	for _, l := range []struct{ lang, program, main string }{{"python", "python3", "main.py"}, {"node", "node", "main.mjs"}, {"typescript", "node", "main.ts"}} {
		if l.lang == "typescript" && !nodeRunsTypeScript(t) {
			continue // e2e compiles it
		}
		for id, flags := range map[string][]string{"mcp": {"--mcp"}, "http": {"--transport", "http"}, "http-mcp": {"--transport", "http", "--mcp"}} {
			dir := newExt(t, l.program, append(flags, "--lang", l.lang)...)
			id = l.lang + "-" + id
			ids = append(ids, id)
			manifest := filepath.Join(dir, "plugin.toml")
			text, err := os.ReadFile(manifest)
			if err != nil {
				t.Fatal(err)
			}
			replace := []string{`"my-ext"`, `"` + id + `"`}
			if flags[0] == "--transport" {
				replace = append(replace, "http://127.0.0.1:8080/", startServer(t, dir, []string{l.program, l.main}))
			}
			if err := os.WriteFile(manifest, []byte(strings.NewReplacer(replace...).Replace(string(text))), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(dir, filepath.Join(roots, id)); err != nil {
				t.Fatal(err)
			}
		}
	}
	data := t.TempDir()
	u := startUp(t, roots, "--listen", "0", "--data", data, "--name", "b1")
	u.await(t, "Ctrl-C stops everything.")
	url := upURL(t, data)
	for _, id := range ids {
		code, stdout, stderr := extctl(t.Context(), url, "call", id+"/greet", "name=Ada")
		if strings.HasSuffix(id, "mcp") {
			stdout = strings.ReplaceAll(stdout, `\"`, `"`)
		}
		if code != 0 || !strings.Contains(strings.ReplaceAll(stdout, " ", ""), `{"greeting":"Hello,Ada!"}`) {
			t.Errorf("%s: exit %d, %s%s%s", id, code, stdout, stderr, u.out.String())
		}
		if code, stdout, stderr := extctl(t.Context(), url, "call", id+"/delete", "name=x"); code == 0 || !strings.Contains(stdout+stderr, "MY_EXT_ALLOW_WRITE=1") {
			t.Errorf("%s: exit %d, %s%s", id, code, stdout, stderr)
		}
	}
}

// startServer starts an extension that listens on any port, and returns its address.
func startServer(t *testing.T, dir string, args []string) string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PORT=0")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was killed
	})
	line, err := bufio.NewReader(stderr).ReadString('\n')
	_, url, ok := strings.Cut(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		t.Fatalf("%v: %s", err, line)
	}
	return url
}

// TestNewService runs an extension that answers on NATS itself.
func TestNewService(t *testing.T) {
	t.Parallel()
	dir := newExt(t, "go", "--lang", "go", "--transport", "nats")
	checkout, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(filepath.Dir(dir), "go.work")
	if err := os.WriteFile(work, []byte("go 1.26.0\nuse (\n\t./my-ext\n\t"+checkout+"\n)\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"GOWORK=" + work, "GOFLAGS="}
	runIn(t, dir, env, "", "go", "vet") // also its test; linking NATS once more takes seconds
	runIn(t, dir, env, "", "go", "build", "-o", "my-ext")

	data := t.TempDir()
	u := startUp(t, dir, "--listen", "0", "--data", data, "--name", "b1")
	u.await(t, "Ctrl-C stops everything.")
	url := upURL(t, data)
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "my-ext"))
	cmd.Env = append(os.Environ(), "NATS_URL="+url)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was killed
	})
	if code, _, stderr := extctl(t.Context(), url, "wait", "my-ext", "--timeout", "1m"); code != 0 {
		t.Errorf("exit %d, %s", code, stderr)
	}
	for tool, hint := range map[string]string{"greet": `"readOnlyHint":true`, "delete": `"destructiveHint":true`} {
		if code, stdout, stderr := extctl(t.Context(), url, "tool", "my-ext/"+tool, "--json"); code != 0 || !strings.Contains(stdout, hint) {
			t.Errorf("%s: exit %d, %s%s", tool, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := extctl(t.Context(), url, "call", "my-ext/greet", "name=Ada"); code != 0 || stdout != `{"greeting":"Hello, Ada!"}`+"\n" {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
}
