package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// offersTools answers initialize with count tools with descriptors of size bytes and more.
func offersTools(count, size int) rpc.Handler {
	text := strings.Repeat("x", size)
	answer := []byte(`{"server_version":"1.0.0","hooks":[],"tools":[`)
	for n := range count {
		answer = fmt.Appendf(answer, `{"name":"t%d","input_schema":{"type":"object","description":"%s"}},`, n, text)
	}
	answer = append(answer[:len(answer)-1], "]}"...)
	return rpc.HandlerFunc(func(context.Context, *rpc.Request) (json.RawMessage, error) { return answer, nil })
}

// TestLargeHandshake: the answer to initialize may be larger than a message. It is shown whole if it fits into the
// catalog; otherwise a diagnostic counts what was left out.
func TestLargeHandshake(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name        string
		payload     int32
		count, size int
		schemas     int // shown
		diagnostic  string
	}{
		{"800 tools of 1.5 kB", 1 << 20, 800, 1500, 600, "of 800 tools are shown as"},
		{"ten tools of 300 kB", 1 << 20, 10, 300_000, 3, "the schemas of 7 of 10 tools are shown as"},
		{"ten tools of 300 kB, and larger messages", 4 << 20, 10, 300_000, 10, ""},
		{"four tools of 1 MB", 1 << 20, 4, 1_000_000, 1, "the schemas of 3 of 4 tools are shown as"},
		{"10,000 tools", 2 << 20, wire.MaxTools, 150, 1, "of 10000 tools are shown as"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := makeBedWith(t, func(o *server.Options) { o.MaxPayload = tc.payload })
			r, _ := b.registry(Config{})
			b.leading(r)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			service := b.connect()
			go func() { // ends with stop
				ended <- mesh.Serve(ctx, service, mesh.Service{ID: "big", Version: "1.0.0", Handler: offersTools(tc.count, tc.size)})
			}()
			defer func() { stop(); <-ended }()
			b.awaitFor(time.Minute, "its tools have names", func() bool { return b.status(r).Tools > 0 })
			var s wire.Spec
			b.awaitFor(time.Minute, "its tools are shown", func() bool { s, _ = b.spec("big"); return len(s.Tools) > 0 })
			whole := 0
			for _, tool := range s.Tools {
				if len(tool.InputSchema) >= tc.size {
					whole++
				}
			}
			if len(s.Tools) != tc.count || whole < tc.schemas {
				t.Errorf("%d tools, %d of them with their schemas; want %d and at least %d", len(s.Tools), whole, tc.count, tc.schemas)
			}
			var codes []string
			for _, d := range s.Diagnostics {
				codes = append(codes, d.Code+": "+d.Message)
			}
			switch {
			case tc.diagnostic == "" && len(codes) > 0:
				t.Errorf("diagnostics: %v", codes)
			case tc.diagnostic != "" && (len(codes) != 1 || !strings.HasPrefix(codes[0], "schema_dropped") || !strings.Contains(codes[0], tc.diagnostic)):
				t.Errorf("diagnostics: %v, want one that contains %q", codes, tc.diagnostic)
			}
		})
	}
}

// TestHandshakeInBadChunks: a handshake fails if its chunks do not fit together, are too many, or request an
// acknowledgement on a subject that is neither an inbox nor the extension's. The next handshake is not delayed.
func TestHandshakeInBadChunks(t *testing.T) {
	frame := func(kind, seq, ack, data string) *nats.Msg {
		m := &nats.Msg{Reply: ack, Data: []byte(data), Header: nats.Header{wire.HeaderFrame: {kind}}}
		if seq != "" {
			m.Header.Set(wire.HeaderSeq, seq)
		}
		return m
	}
	b := newBed(t)
	r, _ := b.registry(Config{})
	b.leading(r)
	acks, err := b.nc.SubscribeSync("ext.registry.heartbeat.victim")
	if err != nil {
		t.Fatal(err)
	}
	large := make([]*nats.Msg, 0, 40)
	for n := range cap(large) {
		large = append(large, frame("chunk", fmt.Sprint(n+1), "", strings.Repeat(" ", 512<<10)))
	}
	for _, tc := range []struct {
		id, want string
		frames   []*nats.Msg
	}{
		{"gap", `received chunk "2" instead of 1`, []*nats.Msg{frame("chunk", "2", "", "{}")}},
		{"short", "received 2 bytes, expected", []*nats.Msg{frame("chunk", "1", "", "{}"), frame("end", "", "", `{"length":3}`)}},
		{"elsewhere", "not an acknowledgement subject", []*nats.Msg{frame("chunk", "1", "ext.registry.heartbeat.victim", "{}")}},
		{"endless", "exceeds the limit of", large},
	} {
		e := b.ext(tc.id, "1.0.0", "n", "get")
		e.a.Features = append(e.a.Features, wire.FeatureStream)
		e.fault = rpc.NewError(rpc.CodeTooLarge, rpc.Details{}, "too large")
		e.frames = tc.frames
		e.up()
		b.await(tc.id+" shows why", func() bool { return strings.Contains(b.failure(tc.id), tc.want) })
	}
	b.ext("good", "1.0.0", "n", "get").up()
	b.await("the next one is shown", b.is("good", heartbeat.Ready))
	if m, err := acks.NextMsg(1); err == nil {
		t.Errorf("acknowledged: %v", m)
	}
}
