package launch_test

import (
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/launch"
)

func TestDownloads(t *testing.T) {
	for line, want := range map[string]string{
		"npx -y @modelcontextprotocol/server-everything":  "npx",
		"/usr/local/bin/npx foo":                          "npx",
		`C:\nodejs\npx.cmd -y foo`:                        "npx",
		"cmd /c npx -y foo":                               "npx",
		"cmd.exe /d /C npx.cmd foo":                       "npx",
		"env NODE_ENV=production npx foo":                 "npx",
		"/usr/bin/env -S npx foo":                         "npx",
		"cmd /c env A=b npx foo":                          "npx",
		"npm exec -- foo":                                 "npm exec",
		"npm --silent exec foo":                           "npm exec",
		"npm start":                                       "",
		"bunx foo":                                        "bunx",
		"bun x foo":                                       "bun x",
		"bun run server.ts":                               "",
		"pnpm dlx foo":                                    "pnpm dlx",
		"yarn dlx foo":                                    "yarn dlx",
		"uvx mcp-server-fetch":                            "uvx",
		"uv run --with mcp server.py":                     "uv run",
		"uv tool run foo":                                 "uv run",
		"uv --directory /srv/weather run server.py":       "uv run",
		"docker -H tcp://box:2375 compose -f c.yml run x": "docker run",
		"uv tool list":                                    "",
		"pipx run foo":                                    "pipx run",
		"docker run -i --rm mcp/time":                     "docker run",
		"podman container run image":                      "podman run",
		"docker exec box server":                          "",
		"go run .":                                        "go run",
		"node server.js npx":                              "",
		"python3 -m npx":                                  "",
		"./npxlike":                                       "",
		"env":                                             "",
		"":                                                "",
	} {
		words := strings.Fields(line)
		if len(words) == 0 {
			words = []string{""}
		}
		if got := launch.Downloads(words[0], words[1:]); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	for script, want := range map[string]string{"npx -y foo": "npx", "exec uvx foo": "uvx", "cd /srv && npx foo": "npx", "": ""} {
		if got := launch.Downloads("sh", []string{"-lc", script}); got != want {
			t.Errorf("sh -lc %q: %q, want %q", script, got, want)
		}
	}
}
