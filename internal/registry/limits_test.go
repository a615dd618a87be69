package registry

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/natstest"
)

// unlimited are limits of an account that allow everything.
var unlimited = server.JetStreamAccountLimits{MaxMemory: -1, MaxStore: 1 << 30, MaxStreams: -1, MaxConsumers: -1, MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1}

// TestStreamOfAnOperator: in an account that requires streams with a limit of bytes, an operator creates the stream with the
// command that extctl prints. The registry corrects the rest of its configuration, and keeps the limit.
func TestStreamOfAnOperator(t *testing.T) {
	b := newBed(t)
	limits := unlimited
	limits.MaxBytesRequired = true
	if err := b.server.Load().GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": limits}); err != nil {
		t.Fatal(err)
	}
	r, _ := b.registry(Config{})
	b.await("the limits do not allow the stream", func() bool { return strings.Contains(b.status(r).JetStream, "err_code=10113") })
	_, err := b.bucket().js.CreateStream(b.timeout(), jetstream.StreamConfig{Name: "KV_ext_catalog", Subjects: []string{"$KV.ext_catalog.>"},
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, MaxBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	b.leading(r)
	b.ext("weather", "1.0.0", "n1", "today").up()
	b.await("the catalog is written", func() bool { s, ok := b.spec("weather"); return ok && len(s.Tools) == 1 })
	info, err := b.bucket().info(b.timeout())
	if err != nil || !settled(info.Config, b.bucket().config(nil, 1)) || info.Config.MaxBytes != 64<<20 {
		t.Errorf("%+v, %v", info, err)
	}
	b.await("JetStream is ok", func() bool { return b.status(r).JetStream == "ok" })
}

// olderServer is a connection to a server that pretends to be one before 2.12, which sends no JetStream API level.
type olderServer struct {
	*bed
	net.Conn
}

func (s olderServer) InProcessConn() (net.Conn, error) {
	c, err := s.bed.InProcessConn()
	return olderServer{Conn: c}, err
}

func (s olderServer) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	copy(p, bytes.ReplaceAll(p[:n], fmt.Appendf(nil, `"api_lvl":%d`, server.JSApiLevel), []byte(`"unknown":0`)))
	return n, err
}

// TestOlderServer: a server without atomic batches is the reason why there is no catalog, and gets no stream.
func TestOlderServer(t *testing.T) {
	b := newBed(t)
	nc, err := nats.Connect("", nats.InProcessServer(olderServer{bed: b}), nats.Timeout(limit))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	r, _ := b.registryOn(nc, Config{})
	want := "the NATS server has version " + server.VERSION + ", which has no atomic batches: the catalog needs nats-server 2.15.2 or newer"
	b.await("the registry states the version", func() bool { return b.status(r).JetStream == want })
	if _, err := b.bucket().info(b.timeout()); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("the stream: %v", err)
	}
}

// TestNoTierForThreeReplicas: in a cluster, an account that may have only streams with one replica gets such a bucket, and
// keeps it when the configuration is checked again.
func TestNoTierForThreeReplicas(t *testing.T) {
	t.Parallel()
	servers := natstest.Cluster(t, 3, &server.Options{JetStream: true})
	for _, s := range servers {
		if err := s.GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"R1": unlimited}); err != nil {
			t.Fatal(err)
		}
	}
	b := &bed{T: t, nc: servers[0].Connect()}
	for range 2 {
		b.await("there is a bucket", func() bool { _, err := b.bucket().ensure(b.timeout(), 0, true); return err == nil })
		if info, err := b.bucket().info(b.timeout()); err != nil || info.Config.Replicas != 1 {
			t.Errorf("%+v, %v", info, err)
		}
	}
}
