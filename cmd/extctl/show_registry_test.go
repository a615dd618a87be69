package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// TestShowRegistry: the output has tables of refusals and replicas; --json prints the registry's own JSON.
func TestShowRegistry(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	nc, err := nats.Connect(b.url, nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	const status = `{"catalog_id":"2026","revision":7,"name":"a","leading":true,"epoch":4,"leader":"a","jetstream":"ok",` +
		`"replicas":[{"name":"a","instance":"i1","version":"1.0.0","leading":true},{"name":"b","instance":"i2","leading":false}],` +
		`"extensions":{"lost":1,"ready":2},"traffic":{"beats":12,"beat_lag_ms":0.5},"refused":{"announce":3},` +
		`"refusals":[{"what":"announce","id":"Bad!","reason":"the id \"Bad!\": want ^[a-z]","count":3,"last":"2026-01-02T03:04:05Z"}]}`
	if _, err := nc.Subscribe("ext.registry.rpc", func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":` + status + `}`)) // the request fails the test otherwise
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	show := func(args string) string {
		var out, errs bytes.Buffer
		if code := run(t.Context(), strings.Fields("show registry --server "+b.url+" "+args), nil, &out, &errs, func(string) string { return "" }); code != 0 {
			t.Fatalf("exit code %d: %s", code, &errs)
		}
		return out.String()
	}
	text := show("")
	for _, want := range []string{
		`(?m)^Registry: +a$`, `(?m)^Role: +leader, epoch 4$`, `(?m)^Catalog: +revision 7 of 2026; it is 0s old$`, `(?m)^Extensions: +2 ready, 1 lost; 0 tools, 0 skills$`,
		`(?m)^Received: +0 announcements, 12 heartbeats \(0.5 ms old on average\), 0 reports from callers$`, `(?m)^Refused: +announce 3$`,
		`(?m)^a +i1 +1.0.0 +leader$`, `(?m)^b +i2 +- +standby$`, `(?m)^announce +Bad! +3 +\d+d ago +the id "Bad!": want \^\[a-z\]$`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if text := show("--json"); !strings.Contains(text, `"registry":`+status) {
		t.Errorf("with --json: %s", text)
	}
}
