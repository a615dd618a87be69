package bridge_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// ask asks on a connection of its own for what say answers, or any error in its place.
func ask(nc *nats.Conn, subject, method, params string) string {
	m, err := nc.Request(subject, []byte(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`), 15*time.Second)
	if err != nil {
		return err.Error()
	}
	return string(m.Data)
}

// TestRestartIsSaid: what takes its time to end is not ready from the moment on in which it is told to, nor is a drained
// one draining once it was asked back.
func TestRestartIsSaid(t *testing.T) {
	h := newHost(t)
	h.extension("slow", `"here"`, "")
	script, goOn := filepath.Join(h.dir, "ext", "slow", "say.sh"), filepath.Join(h.dir, "go-on")
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	h.write(script, string(text)+"while [ ! -e "+goOn+" ]; do sleep 0.01; done\n", 0o755)
	h.run(nil)
	other := h.other()
	for _, before := range []string{"", "drain"} {
		h.says("slow", `"here"`)
		if before != "" {
			h.control(before, `{"id":"slow"}`)
		}
		if got := ask(other, "ext.control.b1", "restart", `{"id":"slow"}`); !strings.Contains(got, "instances") {
			t.Fatalf("restart: %s", got)
		}
		if got := h.control("status", `{"id":"slow"}`); !strings.Contains(got, `"state":"restarting","reason":"restart requested"`) {
			t.Errorf("after %q, and a restart: %s", before, got)
		}
		h.gone("slow")
		if got := h.control("status", `{"id":"slow"}`); !strings.Contains(got, `"state":"restarting"`) {
			t.Errorf("after %q, once nobody listens: %s", before, got)
		}
		h.write(goOn, "", 0o644)
		h.says("slow", `"here"`)
		if err := os.Remove(goOn); err != nil {
			t.Fatal(err)
		}
	}
	h.write(goOn, "", 0o644)
}

// TestDrainedTakesNothing: who has the answer to a drain in hand, and calls over another connection, finds nobody.
func TestDrainedTakesNothing(t *testing.T) {
	h := newHost(t)
	h.extension("one", `"here"`, "")
	h.run(nil)
	other := h.other()
	for n := range 30 {
		h.says("one", `"here"`)
		if got := ask(other, "ext.control.b1", "drain", `{"id":"one"}`); !strings.Contains(got, "instances") {
			t.Fatalf("drain: %s", got)
		}
		if got := ask(other, "ext.one.rpc", "tools/say", "{}"); got != nats.ErrNoResponders.Error() {
			t.Fatalf("the %dth time: %s", n, got)
		}
		h.control("restart", `{"id":"one"}`)
	}
}

// TestReadyIsTrue: who reads that it is ready, and calls, is answered.
func TestReadyIsTrue(t *testing.T) {
	h := newHost(t)
	h.extension("one", `"here"`, "")
	other := h.other()
	lives := 0
	h.run(nil)
	for lives < 30 {
		lives++
		eventually(t, "it is ready", func() bool { return strings.Count(h.log.String(), "extension ready") == lives }, nil)
		if got := ask(other, "ext.one.rpc", "tools/say", "{}"); !strings.Contains(got, "here") {
			t.Fatalf("life %d: %s", lives, got)
		}
		h.control("restart", `{"id":"one"}`)
	}
}
