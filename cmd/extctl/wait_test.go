package main

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"
)

// TestWaitForTools: wait --for ready also waits for the extension's tools, but not longer than the timeout.
func TestWaitForTools(t *testing.T) {
	t.Parallel()
	b, put := newCatalogBed(t)
	wait := func(timeout string) (code int, took time.Duration) {
		began := time.Now()
		args := strings.Fields("wait w --server " + b.url + " --timeout " + timeout)
		return run(t.Context(), args, nil, io.Discard, io.Discard, func(string) string { return "" }), time.Since(began)
	}
	since := time.Now().Add(time.Hour).UTC() // the tools are waited for from then, or from the start of the command
	put("state.w", `{"state":"ready","available":true,"instances":[{"instance":"i","state":"ready","since":"`+since.Format(time.RFC3339Nano)+`"}]}`)
	put("spec.w", `{"id":"w","version":"1.0.0","tools":[]}`)
	if code, took := wait("5s"); code != exitOK || took < 5*time.Second {
		t.Errorf("without tools: exit %d after %s", code, took)
	}
	interrupted, interrupt := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, interrupt)
	if code := run(interrupted, strings.Fields("wait w --server "+b.url), nil, io.Discard, io.Discard, func(string) string { return "" }); code != exitInterrupted {
		t.Errorf("interrupted: exit %d", code)
	}
	put("spec.w", `{"id":"w","version":"1.0.0","handshake_hash":"x","tools":[]}`)
	if code, _ := wait("1m"); code != exitOK {
		t.Errorf("with a handshake: exit %d", code)
	}
	put("spec.w", `{"id":"w","version":"1.0.0","tools":[{"name":"ext_w_a","tool":"a"}]}`)
	if code, _ := wait("1m"); code != exitOK {
		t.Errorf("with a tool: exit %d", code)
	}
}
