package e2e

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestHungBridge stops one of two bridges (SIGSTOP). NATS goes on giving it its share of the calls, because its connection
// is open. Callers whose calls get no sign of life, and whose catalog shows that, address the other instance.
func TestHungBridge(t *testing.T) {
	t.Parallel()
	url, _ := startNATS(t)
	env := []string{"NATS_URL=" + url}
	start(t, env, program(t, "registry"))
	bridges := map[string]*process{}
	for _, name := range []string{"one", "two"} {
		bridges[name] = start(t, env, program(t, "stdio-bridge"), "--name", name, "--search-path", writeWho(t, name))
	}
	client, catalog := caller(t, url)
	eventually(t, time.Minute, "both instances are ready, with their tool", func() bool {
		_, _, known := catalog.Tool("ext_who_who")
		return known && instances(catalog, "who", "") == 2
	})

	const callers = 4
	var calls sync.WaitGroup
	var lost atomic.Int64
	answers := map[string]*atomic.Int64{`"one"`: {}, `"two"`: {}}
	ctx, stop := context.WithCancel(t.Context())
	defer calls.Wait()
	defer stop()
	for range callers {
		calls.Go(func() { // ends with stop, and the call that runs then
			for ctx.Err() == nil {
				got, err := client.Call(context.WithoutCancel(ctx), "ext_who_who", nil)
				if err != nil {
					lost.Add(1)
					t.Logf("lost: %v", err)
					continue
				}
				answers[string(got)].Add(1)
				sleep(ctx, 20*time.Millisecond)
			}
		})
	}
	more := func(what, answer string, n int64) {
		t.Helper()
		before := answers[answer].Load()
		eventually(t, time.Minute, what, func() bool { return answers[answer].Load() >= before+n })
	}
	more("the first bridge answers", `"one"`, 20)
	hung := bridges["one"].cmd.Process
	if err := hung.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hung.Signal(syscall.SIGCONT) }) // or it has ended
	eventually(t, time.Minute, "the catalog shows one ready instance", func() bool { return instances(catalog, "who", "") == 1 })
	shown := lost.Load()
	more("the other bridge answers", `"two"`, 100)
	if err := hung.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the catalog shows two again", func() bool { return instances(catalog, "who", "") == 2 })
	more("the first bridge answers again", `"one"`, 20)
	stop()
	calls.Wait()
	// Each caller can have one call at the hung bridge that NATS has sent there, and one that the client has.
	if n := lost.Load(); n > 2*callers {
		t.Errorf("%d calls were lost, want %d at most", n, 2*callers)
	}
	t.Logf("%d calls were lost, %d of them before the catalog showed it", lost.Load(), shown)
}
