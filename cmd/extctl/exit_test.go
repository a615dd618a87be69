package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

func TestExitCodes(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code int
	}{
		{nil, 0},
		{&mesh.NotFoundError{Name: "x"}, 1},
		{daemon.UsageError{Err: errors.New("x")}, 2},
		{rpc.Errorf(rpc.CodeInvalidParams, rpc.RanNo, "the schema rejects it"), 2},
		{rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "no method"), 1},
		{fail(exitInvalidID, "x"), 4},
		{rpc.Errorf(rpc.CodeExited, rpc.RanMaybe, "x"), 10},
		{rpc.Errorf(rpc.CodeUnavailable, rpc.RanNo, "x"), 10},
		{rpc.Errorf(rpc.CodeBreakerOpen, rpc.RanNo, "x"), 10},
		{rpc.Errorf(rpc.CodeOverloaded, rpc.RanNo, "x"), 10},
		{rpc.Errorf(rpc.CodeTimeout, rpc.RanMaybe, "x"), 11},
		{context.DeadlineExceeded, 11},
		{nats.ErrTimeout, 11},
		{&rpc.Error{Code: 7, Message: "the tool's own"}, 12},
		{&rpc.Error{Code: rpc.CodeInvalidParams, Message: "the tool's own"}, 12},
		{&daemon.ConnectError{Err: errors.New("refused")}, 13},
		{mesh.ErrNoCatalog, 13},
		{&daemon.ConnectError{Err: nats.ErrAuthorization}, 14},
		{nats.ErrPermissionViolation, 14},
		{&mesh.AmbiguousError{Name: "x"}, 15},
		{rpc.Errorf(rpc.CodeTooLarge, rpc.RanNo, "x"), 16},
		{rpc.Errorf(rpc.CodeInternal, rpc.RanMaybe, "x"), 16},
		{errors.New("x"), 16},
		{context.Canceled, 130},
		{silentError(12), 12},
	} {
		if code := exitCode(tc.err); code != tc.code {
			t.Errorf("%v: exit code %d, want %d", tc.err, code, tc.code)
		}
		if tc.err == nil {
			continue
		}
		if code := exitCode(fmt.Errorf("wrapped: %w", tc.err)); code != tc.code {
			t.Errorf("wrapped %v: exit code %d, want %d", tc.err, code, tc.code)
		}
		if tc.code != 0 && kinds[tc.code] == "" {
			t.Errorf("exit code %d has no kind", tc.code)
		}
	}
}

// extctl runs extctl in this process.
func extctl(ctx context.Context, url string, args ...string) (code int, stdout, stderr string) {
	var out bytes.Buffer
	var errs logBuffer // a violation may be logged while the connection is closed
	code = run(ctx, append([]string{"--server", url}, args...), strings.NewReader(""), &out, &errs, func(string) string { return "" })
	return code, out.String(), staleWarning.ReplaceAllString(errs.String(), "")
}

// staleWarning is printed if a command is late: no registry maintains the catalog of a test.
var staleWarning = regexp.MustCompile(`(?m)^extctl: warning: no registry is leading; .*\n`)

func TestRunExitCodes(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	spec := func(id string, tools ...string) {
		s := wire.Spec{ID: id, Version: "1.0.0", Subject: "ext." + id + ".rpc", Tools: []wire.Tool{}}
		for _, own := range tools {
			s.Tools = append(s.Tools, wire.Tool{Name: wire.ToolName(id, own), Own: own})
		}
		data, err := json.Marshal(s)
		if err == nil {
			_, err = b.kv.Put(t.Context(), "spec."+id, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	spec("weather", "echo", "fail", "iserror", "gone", "slow")
	spec("away", "x")
	if err := b.fakeExtension("weather"); err != nil {
		t.Fatal(err)
	}
	// Two tools with the same registered name.
	for id, own := range map[string]string{"a": "b_c", "a_b": "c"} {
		s := wire.Spec{ID: id, Version: "1.0.0", Tools: []wire.Tool{{Name: wire.SuffixedName(id, own, 6), Own: own}}}
		data, err := json.Marshal(s)
		if err == nil {
			_, err = b.kv.Put(t.Context(), "spec."+id, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		args string
		code int
	}{
		{"list", 0},
		{"call ext_weather_echo", 0},
		{"call ext_weather_nope", 1},
		{"show nope", 1},
		{"call ext_weather_echo {", 2},
		{"frobnicate", 2},
		{"show No", 4},
		{"call ext_away_x", 10},
		{"call ext_weather_gone", 10},
		{"call ext_weather_slow --timeout TIMEOUT", 11},
		{"call ext_weather_fail", 12},
		{"call ext_weather_iserror", 12},
		{"list --server nats://127.0.0.1:1", 13},
		{"list --prefix nope", 13},
		{"call ext_a_b_c", 15},
	} {
		verb := func(args ...string) (code int, stdout, stderr string) {
			withTimeouts(func(timeout string) bool {
				args := strings.Fields(strings.Replace(tc.args, "TIMEOUT", timeout, 1) + " " + strings.Join(args, " "))
				code, stdout, stderr = extctl(t.Context(), b.url, args...)
				return code == tc.code || !strings.Contains(tc.args, "TIMEOUT")
			})
			return code, stdout, stderr
		}
		code, stdout, stderr := verb()
		if code != tc.code {
			t.Errorf("%s: exit code %d, want %d\n%s%s", tc.args, code, tc.code, stdout, stderr)
		}
		jcode, stdout, stderr := verb("--json")
		var out struct {
			SchemaVersion int `json:"schema_version"`
		}
		switch {
		case jcode != tc.code:
			t.Errorf("%s --json: exit code %d, want %d", tc.args, jcode, tc.code)
		case tc.code == 12 && strings.Contains(tc.args, "iserror"): // printed unchanged
		case json.Unmarshal([]byte(stdout), &out) != nil || out.SchemaVersion != 1 || stderr != "":
			t.Errorf("%s --json: stdout %q, stderr %q; want one JSON object on stdout", tc.args, stdout, stderr)
		}
	}
}

func TestRunDenied(t *testing.T) {
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true, AuthTimeout: 60,
		Users: []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"$JS.>"}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	defer func() { srv.Shutdown(); srv.WaitForShutdown() }()
	url := strings.Replace(srv.ClientURL(), "nats://", "nats://u:p@", 1)
	for _, args := range []string{"list", "call ext_x_y", "call x", "restart x", "wait x", "watch"} {
		began := time.Now()
		args += " --timeout 2m"
		if code, _, stderr := extctl(t.Context(), url, strings.Fields(args)...); code != 14 || !strings.Contains(stderr, "$JS.API.DIRECT.GET") {
			t.Errorf("%s: exit code %d, %q; want 14 and the subject", args, code, stderr)
		}
		if took := time.Since(began); took > time.Minute { // a denied request must not wait for its timeout
			t.Fatalf("%s took %s", args, took)
		}
	}
	// A call by <id>/<tool> needs no catalog; it fails because the extension is not available.
	if code, _, stderr := extctl(t.Context(), url, "call", "x/y"); code != exitUnavailable || strings.Contains(stderr, "$JS") {
		t.Errorf("call x/y: exit code %d, %q", code, stderr)
	}
	if code, _, stderr := extctl(t.Context(), srv.ClientURL(), "list"); code != 14 {
		t.Errorf("without a password: exit code %d, %q", code, stderr)
	}
}

// TestCallInterrupted ends a call while it waits for an instance that takes it.
func TestCallInterrupted(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	if _, err := b.kv.PutString(t.Context(), "spec.away", `{"id":"away","version":"1.0.0","tools":[{"name":"ext_away_do","tool":"do"}]}`); err != nil {
		t.Fatal(err)
	}
	if _, err := b.kv.PutString(t.Context(), "state.away", `{"state":"restarting","instances":[{"instance":"i","bridge":"b1","state":"restarting"}]}`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waits, err := b.nc.Subscribe("$JS.API.DIRECT.GET.KV_ext_catalog", func(*nats.Msg) { cancel() }) // all of the catalog is read only then
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = waits.Unsubscribe() }()
	if err := b.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := extctl(ctx, b.url, "call", "away/do")
	if code != 130 || stdout+stderr != "" {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
}

func TestRunInterrupted(t *testing.T) {
	t.Parallel()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan int, 1)
	go func() { // ends with cancel
		done <- run(ctx, []string{"watch", "--server", b.url}, nil, io.Discard, w, func(string) string { return "" })
	}()
	if _, err := r.Read(make([]byte, 100)); err != nil { // the first line is printed
		t.Fatal(err)
	}
	cancel()
	if code := <-done; code != 130 { // it must print nothing more: w has no reader
		t.Errorf("exit code %d", code)
	}
}
