package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// TestShowRegistry: the output is the registry's own JSON, with a line for each member unless --json is set.
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
	var indented bytes.Buffer
	if err := json.Indent(&indented, []byte(status), "", "  "); err != nil {
		t.Fatal(err)
	}
	if text := show(""); text != indented.String()+"\n" {
		t.Errorf("without --json: %s", text)
	}
	if text := show("--json"); !strings.Contains(text, `"registry":`+status) {
		t.Errorf("with --json: %s", text)
	}
}
