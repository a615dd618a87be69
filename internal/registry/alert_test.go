package registry

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// codes returns the codes of the alerts in the spec of an extension.
func (b *bed) codes(id string) string {
	var out []string
	s, _ := b.spec(id)
	for _, d := range s.Diagnostics {
		if d.Code == "new_host" || d.Code == "version_jump" {
			out = append(out, d.Code)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestAlerts: an instance on a new host with a new version causes a diagnostic, and so does a major version far above
// the others. A rolling update, more replicas and the next major version do not.
func TestAlerts(t *testing.T) {
	for _, tc := range []struct {
		name, version, host, want string
	}{
		{"a takeover", "999.0.0", "elsewhere", "new_host version_jump"},
		{"a takeover without a host", "1.0.1", "", "new_host"},
		{"another version elsewhere", "1.0.1", "elsewhere", "new_host"},
		{"a jump on a known host", "3.0.0", "host-n1", "version_jump"},
		{"a rolling update", "1.1.0", "host-n1", ""},
		{"the next major version", "2.0.0", "host-n2", ""},
		{"another replica", "1.0.0", "elsewhere", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bed) {
				r, stop := b.registry(Config{})
				b.leading(r)
				for _, name := range []string{"n1", "n2"} {
					e := b.ext("weather", "1.0.0", name, "get")
					e.a.Bridge = ""
					e.up()
					e.sendHeartbeats()
				}
				b.await("it is up", func() bool { return b.instances("weather") == "n1 ready, n2 ready" })
				time.Sleep(settleTime + time.Second) // fake time
				if got := b.codes("weather"); got != "" {
					t.Fatalf("at the start: %s", got)
				}
				e := b.ext("weather", tc.version, "third", "get")
				e.a.Bridge, e.a.Host = "", tc.host
				e.a.HandshakeHash = "another"
				e.up()
				e.sendHeartbeats()
				b.await("it is up, too", func() bool { return b.instances("weather") == "n1 ready, n2 ready, third ready" })
				b.await("the diagnostics are right", func() bool { return b.codes("weather") == tc.want })
				time.Sleep(time.Second) // fake time
				if got := b.codes("weather"); got != tc.want {
					t.Errorf("a while later: %q, want %q", got, tc.want)
				}
				stop()
				r, _ = b.registry(Config{})
				b.leading(r)
				e.announce()
				time.Sleep(5 * time.Second) // fake time
				if got := b.codes("weather"); got != tc.want {
					t.Errorf("after a restart of the registry: %q, want %q", got, tc.want)
				}
			})
		})
	}
}

// TestAlertEnds: an alert is removed together with its instance.
func TestAlertEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bed) {
		r, _ := b.registry(Config{})
		b.leading(r)
		e := b.ext("weather", "1.0.0", "n1", "get")
		e.up()
		e.sendHeartbeats()
		b.await("it is up", b.is("weather", heartbeat.Ready))
		time.Sleep(settleTime + time.Second) // fake time
		b.ext("weather", "999.0.0", "evil", "get").up()
		b.await("it is a takeover", func() bool { return b.codes("weather") == "new_host version_jump" })
		b.publish(prefix.Shutdown("weather"), wire.ShutdownNotice{ID: "weather", Instance: "evil", Reason: wire.ReasonRemoved})
		b.await("it is over", func() bool { return b.codes("weather") == "" && b.instances("weather") == "n1 ready" })
	})
}
