package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/wire"
)

// TestRegistryMemory sends a registry, with the permissions of one extension, announcements of 1,536 instances of 244 KiB
// each and of 12,000 bridges that do not exist, and invalid reports of 1 MB. The registry must stay within half of the
// memory limit of the shipped Kubernetes manifest, and still admit a new host and a new extension.
func TestRegistryMemory(t *testing.T) {
	slowOnly(t, "it measures memory, with 1 GB of messages")
	t.Parallel()
	const limit = 256 << 20
	url, _ := startNATS(t)
	registry := start(t, []string{"NATS_URL=" + url, "GOMEMLIMIT=512MiB"}, plain(t, "registry"))
	nc := connect(t, url)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	in := func(key string) bool {
		kv, err := js.KeyValue(t.Context(), "ext_catalog")
		if err != nil {
			return false
		}
		_, err = kv.Get(t.Context(), key)
		return err == nil
	}
	publish := func(subject string, v any) {
		t.Helper()
		data, err := json.Marshal(v)
		if err == nil {
			err = nc.Publish(subject, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	prefix := wire.Prefix("ext")
	publish(prefix.Announce("primes"), wire.Announce{ID: "primes", Version: "1.0.0"})
	eventually(t, time.Minute, "the registry writes the catalog", func() bool {
		publish(prefix.Announce("primes"), wire.Announce{ID: "primes", Version: "1.0.0"})
		return in("spec.primes")
	})
	t.Logf("before: %d MiB", peakMemory(t, registry)>>20)

	names := make([]string, 990)
	for n := range names {
		names[n] = fmt.Sprintf("%d%s", n, strings.Repeat("x", 245))
	}
	flood := func(count int, message func(n int) (subject string, v any)) {
		t.Helper()
		for n := range count {
			publish(message(n))
			if n%16 == 0 {
				if err := nc.FlushTimeout(time.Minute); err != nil {
					t.Fatal(err)
				}
			}
		}
		// The registry handles messages in order, so an answer means that the flood was handled.
		eventually(t, 5*time.Minute, "the registry has handled the flood", func() bool {
			_, err := nc.Request(prefix.RegistryRPC(), []byte(`{"jsonrpc":"2.0","id":1,"method":"status"}`), 5*time.Second)
			return err == nil
		})
		t.Logf("peak: %d MiB", peakMemory(t, registry)>>20)
	}
	flood(1536, func(n int) (string, any) {
		return prefix.Announce("primes"), wire.Announce{ID: "primes", Version: "1.0.0", Instance: fmt.Sprint("i", n),
			Capabilities: wire.Capabilities{Channels: names}}
	})
	flood(12_000, func(n int) (string, any) {
		return prefix.Announce("primes"), wire.Announce{ID: "primes", Version: "1.0.0", Instance: fmt.Sprint("b", n%4000), Bridge: fmt.Sprint("invented-", n)}
	})
	flood(500, func(int) (string, any) { return prefix.Suspect("primes"), strings.Repeat("x", 1_000_000) })

	if _, err := nc.Subscribe(prefix.Control("real"), func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`)) // fails only when the connection closes at the end of the test
	}); err != nil {
		t.Fatal(err)
	}
	seq := uint64(0)
	eventually(t, time.Minute, "a new host and a new extension are in the catalog", func() bool {
		seq++
		publish(prefix.HostReport("real"), wire.Inventory{Bridge: "real", Run: "r", Seq: seq, Kind: wire.InventoryFull,
			Host: &wire.InventoryHost{Version: "1.0.0", Since: time.Unix(1, 0)}, Instances: []wire.InventoryInstance{{State: "ready",
				Announce: wire.Announce{ID: "weather", Version: "1.0.0", Instance: "i", Bridge: "real"}}}})
		return in("host.real") && in("spec.weather")
	})
	if peak := peakMemory(t, registry); peak > limit {
		t.Errorf("the registry used %d MiB, more than %d", peak>>20, limit>>20)
	}
}

// peakMemory returns the peak resident memory of a process, in bytes.
func peakMemory(t *testing.T, p *process) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
