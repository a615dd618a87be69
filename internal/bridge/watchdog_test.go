package bridge_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/extmesh/extmesh/internal/bridge"
)

// TestWatchdogFirst: no child is started before the watchdog runs, not even by a reload. The bridge responds meanwhile.
func TestWatchdogFirst(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.extension("talker", `"here"`, "")
	awaited, there := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(there) })
	defer goOn()
	h.run(func(c *bridge.Config) { c.Watchdog = func() { close(awaited); <-there } })
	<-awaited
	for _, verb := range []string{"reload", "restart", "logs"} {
		if got := h.control(verb, `{"id":"talker"}`); !strings.Contains(got, `"code":-32003`) || !strings.Contains(got, `"ran":"no"`) {
			t.Errorf("%s: %s", verb, got)
		}
	}
	if got := h.control("status", "{}"); !strings.Contains(got, `"instances":[]`) {
		t.Errorf("status: %s", got)
	}
	goOn()
	h.answers("talker", `"here"`)
}
