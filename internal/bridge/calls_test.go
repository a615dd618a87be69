package bridge_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/calls"
	"github.com/extmesh/extmesh/internal/config"
)

// TestToolErrors calls an MCP tool that fails with isError: that counts as an error, and is kept by its call id.
func TestToolErrors(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.write(filepath.Join(h.dir, "ext", "clients", "mcp.sh"), `#!/bin/sh
while IFS= read -r line; do
	id=$(printf '%s\n' "$line" | sed -n 's/.*"id":\([0-9]*\),.*/\1/p')
	case $line in
	*'"initialize"'*) r='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
	*'"tools/list"'*) r='{"tools":[{"name":"say","inputSchema":{"type":"object"}}]}' ;;
	*'"fail"'*) r='{"content":[{"type":"text","text":"no"}],"isError":true}' ;;
	*) r='{"content":[]}' ;;
	esac
	[ -n "$id" ] && printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$r"
done
`, 0o755)
	h.write(filepath.Join(h.dir, "ext", "clients", ".mcp.json"), `{"mcpServers": {"memory": {"command": "./mcp.sh"}}}`, 0o644)
	settings := config.Default()
	settings.SearchPaths = []string{filepath.Join(h.dir, "ext")}
	settings.Watch.Enabled = false
	b := bridge.New(h.nc, bridge.Config{Name: "b1", Version: "1.0.0", Settings: settings, StateDir: filepath.Join(h.dir, "state"),
		Logger: slog.New(slog.NewTextHandler(&h.log, nil))})
	page := func() exposition {
		var text strings.Builder
		b.WriteMetrics(&text)
		return parseExposition(t, text.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }() // ends with ctx
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "the extension is ready", func() bool {
		return page()[`extmesh_bridge_instances{extension="clients.memory",state="ready"}`] == 1
	}, nil)
	for id, arguments := range map[string]string{"good": `{}`, "bad": `{"fail":1}`} {
		m := &nats.Msg{Subject: "ext.clients.memory.rpc", Header: nats.Header{"Ext-Call-Id": {id}},
			Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"say","arguments":` + arguments + `}}`)}
		if _, err := h.nc.RequestMsg(m, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both calls are counted", func() bool {
		return page()[`extmesh_bridge_tool_duration_seconds_count{extension="clients.memory",tool="say"}`] == 2
	}, nil)
	eventually(t, "the failed call is counted", func() bool {
		return page()[`extmesh_bridge_tool_errors_total{extension="clients.memory",tool="say"}`] == 1
	}, nil)
	p := page()
	for key, want := range map[string]float64{
		`extmesh_bridge_errors_total{extension="clients.memory",kind="tool_error"}`: 1,
		`extmesh_bridge_errors_total{extension="clients.memory",kind="extension"}`:  0,
	} {
		if got, ok := p[key]; !ok || got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if n := p[`extmesh_bridge_child_processes{extension="clients.memory"}`]; n < 1 {
		t.Errorf("the extension has %v processes", n)
	}
	if n := p[`extmesh_bridge_child_resident_bytes{extension="clients.memory"}`]; n < 100<<10 {
		t.Errorf("its processes use %v bytes", n)
	}
	var response struct {
		Result struct {
			Calls []calls.Record `json:"calls"`
		} `json:"result"`
	}
	if err := json.Unmarshal([]byte(h.control("calls", `{"failed":true}`)), &response); err != nil {
		t.Fatal(err)
	}
	if kept := response.Result.Calls; len(kept) != 1 || kept[0].CallID != "bad" || kept[0].Outcome != "tool_error" || kept[0].Method != "tools/say" {
		t.Errorf("the failed calls are %+v", kept)
	}
	if refused := h.control("calls", `{"since":"yesterday"}`); !strings.Contains(refused, "-32602") {
		t.Errorf("wrong params are answered with %s", refused)
	}
}
