package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/natstest"
)

// boxExtension is a container of two MCP servers that write a line when they start and one for each call.
const boxExtension = `
[plugin]
id = "box"
version = "1.2.3"
[mcp_servers.one]
command = "sh"
args = ["-c", '''` + talkingServer + `''']
[mcp_servers.two]
command = "sh"
args = ["-c", '''` + talkingServer + `''']
`

const talkingServer = `
echo started >&2
while read -r line; do
	id=$${line#*\"id\":}; id=$${id%%[,\}]*}
	case $line in
	*initialize\"*) r='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
	*tools/list*) r='{"tools":[{"name":"say","inputSchema":{"type":"object"}}]}' ;;
	*notifications*) continue ;;
	*\"ping\"*) r='{}' ;; # of the registry
	*) r='{"content":[]}'; echo called >&2 ;;
	esac
	echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$r}"
done`

// TestMembers: logs and restart of an extension include its members.
func TestMembers(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	u := startUp(t, extensionDir(t, map[string]string{"box": boxExtension}), "--listen", "0", "--data", data, "--log-level", "error")
	u.await(t, "Ctrl-C stops everything.")
	url := upURL(t, data)
	natstest.Eventually(t, "both members are ready", func() bool {
		_, stdout, _ := extctl(t.Context(), url, "list")
		return strings.Count(stdout, "ready") == 3
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var followed, stderr logBuffer
	done := make(chan int, 1)
	go func() { // ends with ctx
		done <- run(ctx, []string{"logs", "-f", "box", "--server", url}, nil, &followed, &stderr, func(string) string { return "" })
	}()
	has := func(text string, n int) func() bool {
		return func() bool { return strings.Count(followed.String(), text) == n }
	}
	natstest.Eventually(t, "the stored lines are printed", has("started", 2))
	if code, stdout, stderr := extctl(t.Context(), url, "call", "box.one/say"); code != exitOK {
		t.Fatalf("call: exit %d, %s%s", code, stdout, stderr)
	}
	natstest.Eventually(t, "a new line of a member is printed", has("called", 1))
	began := time.Now()
	if code, _, stderr := extctl(t.Context(), url, "restart", "box", "--wait"); code != exitOK {
		t.Fatalf("restart: exit %d, %s", code, stderr)
	}
	_, stdout, _ := extctl(t.Context(), url, "show", "box.two", "--json")
	if since, err := time.Parse(time.RFC3339Nano, between(stdout, `"since":"`, `"`)); err != nil || since.Before(began.Truncate(time.Second)) || !strings.Contains(stdout, `"state":"ready"`) {
		t.Errorf("after the restart: %s (%v)", stdout, err)
	}
	natstest.Eventually(t, "the lines of the new processes are printed", has("started", 4))
	if _, stdout, _ := extctl(t.Context(), url, "logs", "box", "box.one"); strings.Count(stdout, "called") != 1 || !strings.Contains(stdout, " box.one ") {
		t.Errorf("logs of an extension and its member: %s", stdout)
	}
	cancel()
	<-done
}
