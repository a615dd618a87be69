package bridge_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
)

// TestLargeHandshake: the response to initialize of an extension with tools that do not fit in one message is sent in
// chunks if the client requested streaming, and is an error otherwise.
func TestLargeHandshake(t *testing.T) {
	t.Parallel()
	const count, size = 800, 1500
	h := newHost(t)
	dir := filepath.Join(h.dir, "ext", "big")
	tools := make([]string, count)
	for n := range tools {
		tools[n] = fmt.Sprintf(`{"name":"t%d","input_schema":{"type":"object","description":%q}}`, n, strings.Repeat("x", size))
	}
	h.write(filepath.Join(dir, "answer.json"), `{"server_version":"1","tools":[`+strings.Join(tools, ",")+`],"hooks":[]}`, 0o644)
	h.write(filepath.Join(dir, "big.sh"), `#!/bin/sh
while IFS= read -r line; do
	id=$(printf '%s\n' "$line" | sed -n 's/.*"id":\([0-9]*\),.*/\1/p')
	case $line in
	*'"initialize"'*) r=$(cat answer.json) ;;
	*) r='{}' ;;
	esac
	[ -n "$id" ] && printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$r"
done
`, 0o755)
	h.write(filepath.Join(dir, "plugin.toml"), "[plugin]\nid = \"big\"\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"t0\"]\n[transport]\ntype = \"stdio\"\ncommand = \"./big.sh\"\n", 0o644)
	h.run(nil)

	initialize := func() *nats.Msg {
		return &nats.Msg{Subject: "ext.big.rpc", Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`), Header: nats.Header{}}
	}
	eventually(t, "it refuses an answer that does not fit", func() bool {
		m, err := h.nc.RequestMsg(initialize(), time.Second)
		return err == nil && strings.Contains(string(m.Data), `"too_large"`)
	}, nil)

	inbox := h.nc.NewInbox()
	frames, err := h.nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	ask := initialize()
	ask.Reply = inbox
	ask.Header.Set(wire.HeaderStream, "1")
	if err := h.nc.PublishMsg(ask); err != nil {
		t.Fatal(err)
	}
	var text []byte
	for kind := ""; kind != "end"; {
		m, err := frames.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		switch kind = m.Header.Get(wire.HeaderFrame); kind {
		case "chunk":
			text = append(text, m.Data...)
			if m.Reply != "" {
				if err := h.nc.Publish(m.Reply, nil); err != nil {
					t.Fatal(err)
				}
			}
		case "":
			t.Fatalf("one message of %d bytes", len(m.Data))
		}
	}
	var answer struct {
		Result json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		t.Fatal(err)
	}
	if hs, err := wire.ParseHandshake(answer.Result); err != nil || len(hs.Tools) != count {
		t.Errorf("%d tools, %v", len(hs.Tools), err)
	}
}
