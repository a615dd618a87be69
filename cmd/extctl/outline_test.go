package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/health"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestListOutline compares the list that extctl reads from the bucket with the one that it gets from a registry in pages.
func TestListOutline(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	var entries []string
	for n := range 5 {
		id := fmt.Sprint("e", n)
		spec := `{"id":"` + id + `","version":"1.0.0","transport":"stdio","dialect":"mcp","diagnostics":[{"level":"warn","code":"conflict","message":"two lists"}]`
		state := `{"state":"ready","available":true,"since":"2026-01-02T03:04:05Z","instances":[{"instance":"i1","bridge":"b1","version":"1.0.0","state":"ready","since":"2026-01-02T03:04:05Z","restarts":2}]}`
		tools := strings.TrimSuffix(strings.Repeat(`{"name":"ext_x","tool":"x"},`, n), ",")
		for key, value := range map[string]string{"spec." + id: spec + `,"tools":[` + tools + `]}`, "state." + id: state} {
			if _, err := b.kv.PutString(t.Context(), key, value); err != nil {
				t.Fatal(err)
			}
		}
		entries = append(entries, fmt.Sprintf(`{"id":%q,"spec":%s,"state":%s,"tools":%d}`, id, spec+"}", state, n))
	}
	type result struct {
		Extensions []health.Extension
		Revision   uint64
		CatalogID  string `json:"catalog_id"`
	}
	list := func() (string, result) {
		code, table, stderr := extctl(t.Context(), b.url, "list")
		if code != exitOK {
			t.Fatalf("exit code %d, %s", code, stderr)
		}
		var r result
		_, text, _ := extctl(t.Context(), b.url, "list", "--json")
		if err := json.Unmarshal([]byte(text), &r); err != nil || len(r.Extensions) != 5 {
			t.Fatalf("%v: %s", err, text)
		}
		return table, r
	}
	table, fromBucket := list()
	err = b.answer(wire.Prefix(wire.DefaultPrefix).RegistryRPC(), func(method string, params json.RawMessage) (string, *rpc.Error) {
		var p struct {
			Cursor  string
			Outline bool
		}
		if json.Unmarshal(params, &p) != nil || !p.Outline || method != "catalog" {
			return "", rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "%s %s", method, params)
		}
		from, next := 0, "e.e2"
		if p.Cursor != "" {
			from, next = 3, ""
		}
		return fmt.Sprintf(`{"catalog_id":"registry","revision":77,"age_ms":5,"extensions":[%s],"next_cursor":%q}`, strings.Join(entries[from:min(from+3, 5)], ","), next), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	again, fromRegistry := list()
	if again != table {
		t.Errorf("from the registry:\n%s\nfrom the bucket:\n%s", again, table)
	}
	one, _ := json.Marshal(fromBucket.Extensions)
	two, _ := json.Marshal(fromRegistry.Extensions)
	if string(one) != string(two) || fromRegistry.Revision != 77 || fromRegistry.CatalogID != "registry" {
		t.Errorf("from the registry, revision %d of %s:\n%s\nfrom the bucket:\n%s", fromRegistry.Revision, fromRegistry.CatalogID, two, one)
	}
}

// TestNeverMaintained: the catalog that no registry has maintained yet has neither an id nor an age.
func TestNeverMaintained(t *testing.T) {
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	code, stdout, stderr := extctl(t.Context(), b.url, "list", "--json")
	if want := `"catalog_id":"","revision":0,"age_ms":null,"stale":true,"extensions":[]}`; code != 0 || !strings.Contains(stdout, want) {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
}
