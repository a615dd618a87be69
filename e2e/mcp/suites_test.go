package mcp

import (
	"bytes"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestConformance runs the official suites. The files expected-*.yaml list the scenarios that fail, with the reasons; a
// suite fails if another scenario fails, and if one of these passes.
func TestConformance(t *testing.T) {
	for _, tt := range []struct {
		name, suite, expected string
		args                  []string
	}{
		{"0.1.16", "conformance", "expected-0.1.16.yaml", []string{"--suite", "all"}},
		{"2025-11-25", "conformance-alpha", "expected-2025-11-25.yaml", []string{"--suite", "active", "--spec-version", "2025-11-25"}},
		{"2026-07-28", "conformance-alpha", "expected-2026-07-28.yaml", []string{"--requirements", "2026-07-28"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := serveHTTP(t, "--only", "everything", "--names", "own", "--tools", "all")
			awaitTools(t, url)
			args := append([]string{filepath.Join("node_modules", tt.suite, "dist", "index.js"), "server", "--url", url,
				"-o", t.TempDir(), "--expected-failures", tt.expected}, tt.args...)
			out, code := node(t, args...)
			_, summary, _ := strings.Cut(out, "=== SUMMARY ===")
			t.Log(summary)
			if code != 0 {
				t.Errorf("exit code %d\n%s", code, out[max(0, len(out)-20_000):])
			}
		})
	}
}

// awaitTools waits until a server has read the catalog.
func awaitTools(t *testing.T, url string) {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	eventually(t, "the list of tools", func() bool {
		r, err := http.NewRequestWithContext(t.Context(), "POST", url, bytes.NewBufferString(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "*/*", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"} {
			r.Header.Set(k, v)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return err == nil && bytes.Contains(text, []byte("test_simple_text"))
	})
}

// TestInspector uses the command line of the Inspector, in both eras and over both transports.
func TestInspector(t *testing.T) {
	cli := []string{filepath.Join("node_modules", "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js"), "--cli"}
	url := serveHTTP(t, "--only", "everything", "--tools", "all")
	awaitTools(t, url)
	for name, target := range map[string][]string{
		"http":  {url, "--transport", "http"},
		"stdio": {extctl, "mcp", "--server", meshURL, "--wait", "30s", "--only", "everything", "--tools", "all"},
	} {
		for _, era := range []string{"legacy", "modern"} {
			for _, tt := range []struct {
				args []string
				want string
			}{
				{[]string{"--method", "tools/list", "--strict"}, `"ext_everything_test_simple_text"`},
				{[]string{"--method", "tools/call", "--tool-name", "ext_everything_test_simple_text"}, `"type": "text"`},
				{[]string{"--method", "tools/call", "--tool-name", "ext_everything_test_image_content"}, `"type": "image"`},
				{[]string{"--method", "tools/call", "--tool-name", "ext_everything_test_error_handling"}, `"isError": true`},
				{[]string{"--method", "prompts/get", "--prompt-name", "ext_everything_test_simple_prompt"}, `"messages"`},
				{[]string{"--method", "resources/read", "--uri", "test://template/1/data"}, `"contents"`},
			} {
				var args []string
				if name == "http" {
					args = append(append(append(args, cli...), target...), tt.args...)
				} else {
					args = append(append(append(args, cli...), tt.args...), "--protocol-era", era, "--")
					args = append(args, target...)
				}
				if name == "http" {
					args = append(args, "--protocol-era", era)
				}
				out, code := node(t, args...)
				wantCode := 0
				if !strings.Contains(out, tt.want) || code != wantCode && !strings.Contains(out, `"isError": true`) {
					t.Errorf("%s, %s, %q: exit code %d\n%.3000s", name, era, tt.args, code, out)
				}
			}
		}
	}
}

// TestTypeScriptSDK uses the server as programs made with the TypeScript SDKs do.
func TestTypeScriptSDK(t *testing.T) {
	url := serveHTTP(t, "--tools", "all")
	awaitTools(t, url)
	for _, tt := range [][2]string{{"v1", "legacy"}, {"v2", "legacy"}, {"v2", "modern"}} {
		for name, target := range map[string][]string{
			"http":  {url},
			"stdio": {extctl, "mcp", "--server", meshURL, "--wait", "30s", "--tools", "all"},
		} {
			t.Run(strings.Join(tt[:], " ")+" "+name, func(t *testing.T) {
				tool := "ts_" + tt[0] + tt[1] + name
				out, code := node(t, append([]string{"client.mjs", tt[0], tt[1], tool}, target...)...)
				if code != 0 || !strings.HasSuffix(strings.TrimSpace(out), "ok") {
					t.Errorf("exit code %d\n%s", code, out)
				}
			})
		}
	}
}
