package bridge_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/bridge"
)

// heldExtension is an extension whose tool answers when the file that it returns exists.
func (h *host) heldExtension(id string) (goOn string) {
	h.t.Helper()
	goOn = filepath.Join(h.dir, "go-on-"+id)
	h.extension(id, `"$held"`, "")
	h.write(filepath.Join(h.dir, "ext", id, "say.sh"), `#!/bin/sh
while IFS= read -r line; do
	id=$(printf '%s\n' "$line" | sed -n 's/.*"id":\([0-9]*\),.*/\1/p')
	case $line in
	*'"initialize"'*) r='{"server_version":"1","tools":[{"name":"say","input_schema":{"type":"object"}}],"hooks":[]}' ;;
	*'"tools/say"'*) echo called >&2; while [ ! -e `+goOn+` ]; do sleep 0.01; done; r='"held"' ;;
	*) r='{}' ;;
	esac
	[ -n "$id" ] && printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$r"
done
`, 0o755)
	return goOn
}

// TestRestartDrainsFirst: with drain_ms, a call in flight that takes longer than a restart waits is answered before the
// restart. If it takes longer than drain_ms, it fails.
func TestRestartDrainsFirst(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	goOn := h.heldExtension("held")
	h.run(nil)
	other := h.other()
	eventually(t, "the bridge answers", func() bool {
		return strings.Contains(request(other, "ext.control.b1", "status", `{"id":"held"}`), "instances")
	}, nil)
	for _, tt := range []struct{ params, want string }{
		{`{"id":"held","drain_ms":600000}`, `"result":"held"`},
		{`{"id":"held","drain_ms":1}`, "extension_exited"},
	} {
		runs := strings.Count(h.log.String(), "extension ready")
		eventually(t, "it is ready", func() bool { return strings.Contains(h.control("status", `{"id":"held"}`), `"state":"ready"`) }, nil)
		answered := h.callHeld(other)
		for range 2 { // the second request changes nothing
			if got := h.control("restart", tt.params); !strings.Contains(got, `"instances":["`) {
				t.Fatalf("restart: %s", got)
			}
		}
		if strings.Contains(tt.params, "600000") {
			if got := h.control("status", `{"id":"held"}`); !strings.Contains(got, `"state":"draining","reason":"drain requested"`) {
				t.Errorf("with a call in flight: %s", got)
			}
			h.write(goOn, "", 0o644)
		}
		if got := <-answered; !strings.Contains(got, tt.want) {
			t.Errorf("%s: the call was answered with %s, want %s", tt.params, got, tt.want)
		}
		h.write(goOn, "", 0o644)
		eventually(t, "it has restarted", func() bool {
			return strings.Count(h.log.String(), "extension ready") > runs && strings.Contains(h.control("status", `{"id":"held"}`), `"state":"ready"`)
		}, nil)
		if err := os.Remove(goOn); err != nil {
			t.Fatal(err)
		}
	}
}

// callHeld calls the extension "held", and returns when it has the call. The answer comes when the call is complete.
func (h *host) callHeld(nc *nats.Conn) (answer <-chan string) {
	answered := make(chan string, 1)
	calls := strings.Count(h.control("logs", `{"id":"held","lines":100}`), "called")
	go func() { answered <- request(nc, "ext.held.rpc", "tools/say", "{}") }() // ends with the call
	eventually(h.t, "it has the call", func() bool { return strings.Count(h.control("logs", `{"id":"held","lines":100}`), "called") > calls }, nil)
	return answered
}

// TestDrainAfterRestart: a drain that follows a restart with drain_ms replaces it.
func TestDrainAfterRestart(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	goOn := h.heldExtension("held")
	h.run(nil)
	other := h.other()
	eventually(t, "it is ready", func() bool {
		return strings.Contains(request(other, "ext.control.b1", "status", `{"id":"held"}`), `"state":"ready"`)
	}, nil)
	answered := h.callHeld(other)
	h.control("restart", `{"id":"held","drain_ms":600000}`)
	h.control("drain", `{"id":"held"}`)
	h.write(goOn, "", 0o644)
	if got := <-answered; !strings.Contains(got, `"result":"held"`) {
		t.Errorf("the call in flight: %s", got)
	}
	for range 50 { // the restart would follow at once
		if got := h.control("status", `{"id":"held"}`); !strings.Contains(got, `"state":"draining","reason":"drain requested"`) {
			t.Fatalf("after the call: %s", got)
		}
	}
}

// TestDrainOfAll: a drain without an id drains everything that the bridge runs, and a restart ends it.
func TestDrainOfAll(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("one", `"1"`, "")
	h.extension("two", `"2"`, "")
	h.run(nil)
	h.answers("one", `"1"`)
	h.answers("two", `"2"`)
	var drained struct{ Result struct{ Instances []string } }
	if got := h.control("drain", `{}`); json.Unmarshal([]byte(got), &drained) != nil || len(drained.Result.Instances) != 2 {
		t.Errorf("drain: %s", got)
	}
	if got := h.control("status", `{}`); strings.Count(got, `"reason":"drain requested"`) != 2 {
		t.Errorf("status: %s", got)
	}
	h.control("restart", `{"id":"one"}`)
	h.answers("one", `"1"`)
	for _, wrong := range []string{`{"instance":"x"}`, `{"id":"absent"}`} {
		if got := h.control("drain", wrong); !strings.Contains(got, "-32602") {
			t.Errorf("drain %s: %s", wrong, got)
		}
	}
	if got := h.control("restart", `{}`); !strings.Contains(got, "-32602") {
		t.Errorf("restart without an id: %s", got)
	}
}

// TestReloadSaysWhereItLooks: reload and status have the directories in which the bridge looks, and what it found.
func TestReloadSaysWhereItLooks(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("one", `"1"`, "")
	h.write(filepath.Join(h.dir, "ext", "bad", "plugin.toml"), "[plugin]\n", 0o644)
	h.run(nil)
	h.answers("one", `"1"`)
	where := `"search_paths":["` + filepath.Join(h.dir, "ext") + `"]`
	if got := h.control("reload", `{}`); !strings.Contains(got, `"extensions":1,"problems":3,`+where) {
		t.Errorf("reload: %s", got)
	}
	if got := h.control("status", `{}`); !strings.Contains(got, where) {
		t.Errorf("status: %s", got)
	}
	off, got := newHost(t), ""
	off.run(func(c *bridge.Config) { c.Settings.Enabled = false })
	eventually(t, "it answers", func() bool {
		got = request(off.nc, "ext.control.b1", "reload", `{}`)
		return strings.Contains(got, `"extensions":0,"problems":0,"search_paths":[]`)
	}, func() string { return got })
}
