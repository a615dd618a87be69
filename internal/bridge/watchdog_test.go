package bridge_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/extmesh/extmesh/internal/bridge"
)

// TestWatchdogFirst: no child is started before the watchdog is there, by a reload either. The bridge can be asked.
func TestWatchdogFirst(t *testing.T) {
	h := newHost(t)
	h.extension("talker", `"here"`, "")
	awaited, there := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(there) })
	defer goOn()
	h.run(func(c *bridge.Config) { c.Watchdog = func() { close(awaited); <-there } })
	<-awaited
	if got := h.control("reload", "{}"); !strings.Contains(got, "the bridge is not running") {
		t.Errorf("reload: %s", got)
	}
	if got := h.control("status", "{}"); !strings.Contains(got, `"instances":[]`) {
		t.Errorf("status: %s", got)
	}
	goOn()
	h.says("talker", `"here"`)
}
