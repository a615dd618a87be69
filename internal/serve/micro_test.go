package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// asks publishes a discovery request and returns the first want answers to it, and all that arrive until a later request is
// answered.
func asks(t *testing.T, nc *nats.Conn, subject string, want int) (answers []json.RawMessage) {
	t.Helper()
	inbox, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	defer inbox.Unsubscribe()
	if err := nc.PublishRequest(subject, inbox.Subject, nil); err != nil {
		t.Fatal(err)
	}
	for len(answers) < want {
		m, err := inbox.NextMsg(time.Minute)
		if err != nil {
			t.Fatalf("%s: %v after %d answers", subject, err, len(answers))
		}
		answers = append(answers, m.Data)
	}
	for range 2 { // the questions of one Node are answered in their order
		if _, err := nc.Request("$SRV.PING.last", nil, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	for {
		m, err := inbox.NextMsg(time.Millisecond)
		if err != nil {
			return answers
		}
		answers = append(answers, m.Data)
	}
}

// microBed serves three extensions from one Node: two replicas of duck, and one named last.
func microBed(t *testing.T) (nc *nats.Conn, slots []*Instance) {
	t.Helper()
	nc = duckConn(t, duckServers(t, 1)[0])
	node := NewPublisher(nc, PublisherOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { node.Run(ctx) }) // these end with ctx
	t.Cleanup(func() { cancel(); wg.Wait() })
	h := rpc.HandlerFunc(func(_ context.Context, r *rpc.Request) (json.RawMessage, error) {
		if r.Method != "tools/echo" {
			return nil, errors.New("no")
		}
		return r.Params, nil
	})
	for _, id := range []string{"duck", "duck", "last"} {
		inst := node.Join(wire.Announce{ID: id, Version: "1.2.3", About: wire.About{Name: "A " + id}, Bridge: "b"})
		slots = append(slots, inst)
		wg.Go(func() {
			if err := inst.Serve(ctx, h, Options{}); err != nil {
				t.Errorf("Serve: %v", err)
			}
		})
	}
	for _, inst := range slots {
		natstest.Eventually(t, "it is ready", func() bool { s, _ := inst.State(); return s == "ready" })
	}
	natstest.Eventually(t, "all are heard", func() bool {
		inbox, err := nc.SubscribeSync(nc.NewInbox())
		if err != nil {
			t.Fatal(err)
		}
		defer inbox.Unsubscribe()
		nc.PublishRequest("$SRV.PING", inbox.Subject, nil)
		_, err = inbox.NextMsg(time.Second)
		return err == nil
	})
	return nc, slots
}

// TestMicroAnswers sends discovery requests as tools for micro services do, and compares the form of the answers with the
// answers of a service that package micro made.
func TestMicroAnswers(t *testing.T) {
	nc, slots := microBed(t)
	theirs, err := micro.AddService(nc, micro.Config{Name: "theirs", Version: "1.0.0", Metadata: map[string]string{"k": "v"}})
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Stop()
	if err := theirs.AddEndpoint("rpc", micro.HandlerFunc(func(micro.Request) {}), micro.WithEndpointSubject("x.y")); err != nil {
		t.Fatal(err)
	}
	for verb, answer := range map[string]any{"PING": &micro.Ping{}, "INFO": &micro.Info{}, "STATS": &micro.Stats{}} {
		form := members(t, asks(t, nc, "$SRV."+verb+".theirs", 1)[0])
		seen := map[string]int{}
		for _, data := range asks(t, nc, "$SRV."+verb, 4) {
			if got := members(t, data); !slices.Equal(got, form) {
				t.Errorf("%s has the members %q, package micro's %q", verb, got, form)
			}
			d := json.NewDecoder(bytes.NewReader(data))
			d.DisallowUnknownFields()
			if err := d.Decode(answer); err != nil {
				t.Errorf("%s: %v", verb, err)
			}
			var who micro.ServiceIdentity
			if err := json.Unmarshal(data, &who); err != nil {
				t.Error(err)
			}
			if who.ID == "" || who.Name != "theirs" && (who.Version != "1.2.3" || who.Metadata["bridge"] != "b") {
				t.Errorf("%s: %+v", verb, who)
			}
			seen[who.Name]++
			if one := asks(t, nc, fmt.Sprintf("$SRV.%s.%s.%s", verb, who.Name, who.ID), 1); len(one) != 1 {
				t.Errorf("%s of %s alone: %d answers", verb, who.Name, len(one))
			}
		}
		if want := (map[string]int{"duck": 2, "last": 1, "theirs": 1}); !maps.Equal(seen, want) {
			t.Errorf("%s is answered by %v, want %v", verb, seen, want)
		}
		if n := len(asks(t, nc, "$SRV."+verb+".duck", 2)); n != 2 {
			t.Errorf("%s of two ducks has %d answers", verb, n)
		}
	}
	for _, subject := range []string{"$SRV.NONE", "$SRV.NONE.duck"} {
		if answers := asks(t, nc, subject, 0); len(answers) > 0 {
			t.Errorf("%s, an unknown verb, is answered by %s", subject, answers[0])
		}
	}
	if _, err := nc.Request("$SRV.PING.missing", nil, time.Minute); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a service that is missing: %v, want no responders", err)
	}
	var info micro.Info
	if err := json.Unmarshal(asks(t, nc, "$SRV.INFO.last", 1)[0], &info); err != nil {
		t.Fatal(err)
	}
	want := []micro.EndpointInfo{{Name: "rpc", Subject: "ext.last.rpc", QueueGroup: "q"},
		{Name: "instance", Subject: "ext.last.rpc." + slots[2].Instance()}}
	if info.Description != "A last" || !slices.EqualFunc(info.Endpoints, want, func(a, b micro.EndpointInfo) bool {
		return a.Name == b.Name && a.Subject == b.Subject && a.QueueGroup == b.QueueGroup
	}) {
		t.Errorf("info: %+v", info)
	}
}

// members lists the members of an object and, after a dot, of the objects in its lists.
func members(t *testing.T, data []byte) (names []string) {
	t.Helper()
	var o map[string]json.RawMessage
	if err := json.Unmarshal(data, &o); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	for name, v := range o {
		names = append(names, name)
		var list []json.RawMessage
		if json.Unmarshal(v, &list) == nil && len(list) > 0 {
			for _, inner := range members(t, list[0]) {
				names = append(names, name+"."+inner)
			}
		}
	}
	slices.Sort(names)
	return names
}

// TestMicroStats: what is counted is how calls ended, and where they came in.
func TestMicroStats(t *testing.T) {
	nc, slots := microBed(t)
	for subject, requests := range map[string][]string{
		"ext.last.rpc":                        {`{"jsonrpc":"2.0","id":1,"method":"tools/echo"}`, `{"jsonrpc":"2.0","id":2,"method":"tools/fail"}`, `{"jsonrpc":"2.0","id":3,"method":"nothing"}`},
		"ext.last.rpc." + slots[2].Instance(): {`no JSON`},
	} {
		for _, text := range requests {
			if _, err := nc.Request(subject, []byte(text), time.Minute); err != nil {
				t.Fatal(err)
			}
		}
	}
	natstest.Eventually(t, "it has counted", func() bool {
		var stats micro.Stats
		if err := json.Unmarshal(asks(t, nc, "$SRV.STATS.last", 1)[0], &stats); err != nil || len(stats.Endpoints) != 2 {
			t.Fatalf("%+v, %v", stats, err)
		}
		a, b := stats.Endpoints[0], stats.Endpoints[1]
		return a.NumRequests == 3 && a.NumErrors == 2 && a.LastError != "" && a.ProcessingTime > 0 && a.AverageProcessingTime == a.ProcessingTime/3 &&
			b.NumRequests == 1 && b.NumErrors == 1 && b.LastError != "" && !stats.Started.IsZero()
	})
}

// TestMicroGone: a service that is not subscribed does not answer, and no answer is sent to the mesh's own subjects.
func TestMicroGone(t *testing.T) {
	nc := duckConn(t, duckServers(t, 1)[0])
	inst := serveOn(t, nc, echo)
	heard, err := nc.SubscribeSync("ext.registry.shutdown.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishRequest("$SRV.PING.duck", "ext.registry.shutdown.x", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Request("$SRV.PING.duck", nil, time.Minute); err != nil {
		t.Fatal(err)
	}
	if m, err := heard.NextMsg(time.Millisecond); err == nil {
		t.Errorf("it answered on %s: %s", m.Subject, m.Data)
	}
	service := inst.pub.streams.list()[0]
	service.pause()
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Request("$SRV.PING.duck", nil, time.Minute); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("paused, it is found: %v", err)
	}
	if err := service.resume(); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Request("$SRV.PING.duck", nil, time.Minute); err != nil {
		t.Errorf("resumed, it is not: %v", err)
	}
}
