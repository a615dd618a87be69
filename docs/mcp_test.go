package docs_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/freeport"
)

// mcpEntry is one server in the configuration of an MCP client.
type mcpEntry struct {
	Command string
	Args    []string
	Type    string
	URL     string
}

// TestMCPPage starts the server of each entry on mcp.md and in the README, and lists its tools, and runs or reads the other blocks.
func TestMCPPage(t *testing.T) {
	t.Parallel()
	dir, url := startDesk(t)
	extctl := filepath.Join(dir, "extctl")
	seen, steps := map[string]int{}, ""
	blocks := fences(read(t, "mcp.md"))
	for _, f := range fences(read(t, "../README.md")) {
		if f.lang == "json" {
			f.kind = "entry"
			blocks = append(blocks, f)
		}
	}
	for _, f := range blocks {
		if f.lang == "" {
			continue
		}
		kind := f.lang + " " + f.kind
		seen[kind]++
		switch kind {
		case "json entry", "json url", "toml entry":
			var file struct {
				MCPServers  map[string]mcpEntry `json:"mcpServers"`
				Servers     map[string]mcpEntry
				MCPServers2 map[string]mcpEntry `toml:"mcp_servers"`
			}
			decode := json.Unmarshal
			if f.lang == "toml" {
				decode = toml.Unmarshal
			}
			if err := decode([]byte(f.text), &file); err != nil {
				t.Errorf("line %d: %v", f.line, err)
				continue
			}
			for _, servers := range []map[string]mcpEntry{file.MCPServers, file.Servers, file.MCPServers2} {
				for name, s := range servers {
					switch {
					case name != "mesh":
						t.Errorf("line %d: the server is called %s", f.line, name)
					case f.kind == "entry":
						listOverPipe(t, extctl, url, s)
					case s.URL != "http://127.0.0.1:7331/mcp" || s.Type != "http":
						t.Errorf("line %d: %+v", f.line, s)
					}
				}
			}
		case "yaml profiles":
			if p, err := config.ParseProfiles("mcp.md", []byte(f.text)); err != nil || !p["research"].ReadOnly || len(p["default"].Exclude) != 1 {
				t.Errorf("line %d: %+v, %v", f.line, p, err)
			}
		case "yaml tokens":
			if tokens, err := config.ParseTokens("mcp.md", []byte(f.text)); err != nil || tokens[0].Name != "ada" || tokens[0].Expires.IsZero() {
				t.Errorf("line %d: %+v, %v", f.line, tokens, err)
			}
		case "sh http":
			listOverHTTP(t, extctl, url, f.text)
		case "sh up":
			if f.text != "extctl up ~/extensions\n" { // startDesk runs it, for another directory
				t.Errorf("line %d: %s", f.line, f.text)
			}
		case "sh import", "sh install":
			steps += f.text
		}
	}
	importServers(t, dir, steps)
	for _, kind := range []string{"json entry", "json url", "toml entry", "yaml profiles", "yaml tokens", "sh http", "sh import", "sh install", "sh up"} {
		if seen[kind] == 0 {
			t.Errorf("the page has no block of %s", kind)
		}
	}
}

// listOverPipe starts a server as a client does.
func listOverPipe(t *testing.T, extctl, url string, s mcpEntry) {
	t.Helper()
	if s.Command != "extctl" || !slices.Contains(s.Args, "mcp") {
		t.Errorf("the entry starts %s %q", s.Command, s.Args)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, extctl, append(s.Args, "--wait", "30s")...)
	cmd.Env = append(os.Environ(), "NATS_URL="+url)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`+"\n")
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.Contains(line, `"name":"ext_hello_greet"`) {
		t.Errorf("%q: %v %s", s.Args, err, line)
	}
	_ = in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%q: %v", s.Args, err)
	}
}

// listOverHTTP runs the server of the page on a free port.
func listOverHTTP(t *testing.T, extctl, url, text string) {
	t.Helper()
	address := freeport.Addr(t)
	args := strings.Fields(strings.Replace(text, "127.0.0.1:7331", address, 1))
	if args[0] != "extctl" {
		t.Fatalf("the block runs %s", args[0])
	}
	background(t, []string{"NATS_URL=" + url}, extctl, append(args[1:], "--wait", "30s")...)
	body := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+address+"/mcp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		res, err := http.DefaultClient.Do(r)
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK || res.Header.Get("Mcp-Session-Id") == "" {
				t.Errorf("initialize: %d %v", res.StatusCode, res.Header)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// importServers runs the blocks that import a client's servers, and undoes what they did.
func importServers(t *testing.T, dir, text string) {
	t.Helper()
	home := t.TempDir()
	file := filepath.Join(home, ".cursor", "mcp.json")
	servers := `{"mcpServers": {"memory": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"], "env": {"X_TOKEN": "hidden"}}}}`
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(servers), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(text string) string {
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", text)
		cmd.Dir = home
		cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home+"/.config", "XDG_STATE_HOME="+home+"/.state", "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), "hidden") {
			t.Errorf("%v\n%s", err, out)
		}
		return read(t, file)
	}
	if now := run(text); !strings.Contains(now, `"mesh"`) || strings.Contains(now, "memory") {
		t.Errorf("the client's file is %s", now)
	}
	run("extctl validate ~/extensions/imported/.mcp.json")
	if now := run("extctl import --undo; extctl mcp uninstall cursor; extctl import --undo"); now != servers {
		t.Errorf("after the undo the client's file is %s", now)
	}
}
