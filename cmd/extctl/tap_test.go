package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestTap shows the calls of an extension on a real bridge. The bridge ends the tap.
func TestTap(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	u := startUp(t, extensionDir(t, map[string]string{"echo": shellExtension}), "--listen", "0", "--data", data, "--name", "b1", "--log-level", "error")
	u.await(t, "Ctrl-C stops everything.")
	var out strings.Builder
	if code := run(t.Context(), []string{"url", "--data", data}, nil, &out, &out, func(string) string { return "" }); code != 0 {
		t.Fatal(out.String())
	}
	url := strings.TrimSpace(out.String())
	nc, err := nats.Connect(url, nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	for _, flags := range [][]string{{"--json"}, {"--caller", "ada"}} {
		tap, made := &upRun{done: make(chan int, 1)}, 0
		ctx, cancel := context.WithCancel(t.Context())
		go func() { // ends with ctx
			tap.done <- run(ctx, append([]string{"tap", "echo", "--for", "10m", "--server", url}, flags...), nil, &tap.out, &tap.err, func(string) string { return "" })
		}()
		for strings.Count(tap.out.String(), "\n") < 2 { // the tap begins some time after its start
			made++
			m := &nats.Msg{Subject: "ext.echo.rpc", Header: nats.Header{wire.HeaderCallID: {fmt.Sprint("c", made)}, wire.HeaderAgent: {"ada"}},
				Data: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/say","params":{"what":"hi"}}`)}
			if _, err := nc.RequestMsg(m, time.Minute); err != nil {
				t.Fatal(err)
			}
			select {
			case code := <-tap.done:
				t.Fatalf("exit code %d, %s", code, tap.err.String())
			case <-time.After(5 * time.Millisecond):
			}
		}
		cancel()
		<-tap.done
		lines := strings.Split(strings.TrimSpace(tap.out.String()), "\n")
		var c callJSON
		switch {
		case len(lines) > made:
			t.Errorf("%d lines, %d calls, %s", len(lines), made, tap.err.String())
		case flags[0] == "--json" && (json.Unmarshal([]byte(lines[1]), &c) != nil || c.Bridge != "b1" || c.Method != "tools/say" || c.Agent != "ada" || c.CallID == ""):
			t.Errorf("%s", lines[1])
		case flags[0] != "--json" && !strings.Contains(strings.Join(strings.Fields(lines[1]), " "), " ms ada c"):
			t.Errorf("%s", lines[1])
		}
	}
	if code, _, stderr := extctl(t.Context(), url, "tap", "echo", "--for", "1s"); code != 0 {
		t.Errorf("its time is over: exit code %d, %s", code, stderr)
	}
	inbox := nats.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 { // at most four at a time, and those of the commands that were interrupted have not ended
		if err := nc.PublishRequest("ext.control.b1", inbox, []byte(`{"jsonrpc":"2.0","id":1,"method":"tap","params":{"id":"echo","for_ms":600000}}`)); err != nil {
			t.Fatal(err)
		}
	}
	var begun, refused int
	for begun+refused < 5 {
		m, err := sub.NextMsg(time.Minute)
		switch {
		case err != nil:
			t.Fatal(err)
		case strings.Contains(string(m.Data), "-32005"):
			refused++
		case strings.Contains(string(m.Data), `"for_ms"`):
			begun++
		}
	}
	if begun != 2 || refused != 3 {
		t.Errorf("%d taps begin, %d are refused", begun, refused)
	}
	if m, err := nc.Request("ext.control.b1", []byte(`{"jsonrpc":"2.0","id":1,"method":"tap"}`), time.Minute); err != nil || !strings.Contains(string(m.Data), "-32602") {
		t.Errorf("%s, %v", m.Data, err)
	}
}

// TestTapRefused: errors of the command line, and of bridges.
func TestTapRefused(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.putExtension(t, "hello", "b1")
	b.putHost(t, wire.Host{Bridge: "b1"})
	if err := errors.Join(b.answer(wire.Prefix(wire.DefaultPrefix).Control("b1"), func(string, json.RawMessage) (string, *rpc.Error) {
		return "", rpc.Errorf(rpc.CodeOverloaded, rpc.RanNo, "bridge b1 has as many taps as it may have")
	}), b.answer(wire.Prefix(wire.DefaultPrefix).Control("b2"), func(string, json.RawMessage) (string, *rpc.Error) { return `{"for_ms":1000}`, nil })); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"tap":                               "2 ID is missing",
		"tap x*":                            "4 ",
		"tap hallo":                         `1 no extension has the id "hallo"`,
		"tap hello --for 1h":                "2 --for 1h0m0s: want a duration from 1s to 10m",
		"tap hello --for 0s":                "2 --for 0s: want a duration",
		"tap hello":                         "10 bridge b1: bridge b1 has as many taps as it may have",
		"tap hello --bridge b9":             "10 bridge b9 is not available",
		"tap hello --for 1s --bridge b2":    "11 bridge b2 did not end the tap",
		"tap hello --bridge b9,b1 --for 1s": "10 bridge b", // either may refuse first
	} {
		code, stdout, stderr := extctl(t.Context(), b.url, strings.Fields(line)...)
		if number, text, _ := strings.Cut(want, " "); fmt.Sprint(code) != number || !strings.Contains(stderr, text) {
			t.Errorf("%s: exit code %d, %s%s", line, code, stdout, stderr)
		}
	}
}
