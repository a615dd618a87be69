package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/extmesh/extmesh/internal/freeport"
	"github.com/extmesh/extmesh/internal/natstest"
)

func itoa(n int) string { return strconv.Itoa(n) }

// runProgram executes a program as its main does.
func runProgram(ctx context.Context, out io.Writer, args []string, f func(context.Context, Process) error) int {
	return Program{Name: "prog", Summary: "prog does it.", Run: f}.Execute(ctx, args, out, out)
}

func TestProgramExitCodes(t *testing.T) {
	emptyHome(t)
	srv := natstest.Start(t, &server.Options{Port: -1})
	ok := func(context.Context, Process) error { return nil }
	for _, tc := range []struct {
		name string
		args []string
		f    func(context.Context, Process) error
		code int
		want string
	}{
		{"fine", nil, ok, 0, "prog is running"},
		{"failure", nil, func(context.Context, Process) error { return errors.New("boom") }, 1, "prog: error: boom"},
		{"unknown flag", []string{"--nope"}, ok, 2, "prog: error: flag provided but not defined: -nope\nprog: hint"},
		{"argument", []string{"x"}, ok, 2, `unexpected argument "x"`},
		{"level", []string{"--log-level", "loud"}, ok, 2, "debug, info, warn or error"},
		{"format", []string{"--log-format", "xml"}, ok, 2, "text, json or auto"},
		{"prefix", []string{"--prefix", "a_b"}, ok, 2, "a_b"},
		{"http", []string{"--http", "127.0.0.1:99999"}, func(ctx context.Context, _ Process) error {
			<-ctx.Done()
			return ctx.Err()
		}, 1, "--http"},
		{"help", []string{"--help"}, ok, 0, "--server URL"},
		{"version", []string{"--version"}, ok, 0, "prog "},
	} {
		var stderr logBuffer
		args := append([]string{"--server", srv.ClientURL()}, tc.args...)
		if code := runProgram(t.Context(), &stderr, args, tc.f); code != tc.code || !strings.Contains(stderr.String(), tc.want) {
			t.Errorf("%s: exit %d, %q; want exit %d with %q", tc.name, code, stderr.String(), tc.code, tc.want)
		}
	}
}

func TestProgramEndsWithItsContext(t *testing.T) {
	emptyHome(t)
	srv := natstest.Start(t, &server.Options{Port: -1})
	ctx, cancel := context.WithCancel(t.Context())
	code := runProgram(ctx, io.Discard, []string{"--server", srv.ClientURL()}, func(ctx context.Context, p Process) error {
		if err := p.NC.Flush(); err != nil {
			t.Error(err)
		}
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	if code != 0 {
		t.Errorf("exit %d", code)
	}
	// The same while the program waits for NATS.
	ctx, cancel = context.WithCancel(t.Context())
	var log logBuffer
	done := make(chan int, 1)
	go func() { // ends with cancel
		done <- runProgram(ctx, &log, []string{"--server", freeport.Addr(t)}, nil)
	}()
	natstest.Eventually(t, "the program waits", func() bool { return strings.Contains(log.String(), "waiting for NATS") })
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("while waiting: exit %d", code)
	}
}

func TestHealth(t *testing.T) {
	emptyHome(t)
	srv := natstest.Start(t, &server.Options{Port: -1})
	addr := freeport.Addr(t)
	get := func(path string) (int, string) {
		resp, err := http.Get("http://" + addr + path)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp.StatusCode, string(body)
	}
	code := runProgram(t.Context(), io.Discard, []string{"--server", srv.ClientURL(), "--http", addr}, func(_ context.Context, p Process) error {
		natstest.Eventually(t, "the endpoints respond", func() bool { c, _ := get("/healthz"); return c == 200 })
		if c, body := get("/readyz"); c != 503 || body != "starting\n" {
			t.Errorf("readyz before Health.Ready: %d %s", c, body)
		}
		p.Health.Ready(func() error { return nil })
		if c, body := get("/readyz"); c != 200 {
			t.Errorf("readyz: %d %s", c, body)
		}
		p.Health.Ready(func() error { return errors.New("no lease") })
		if c, body := get("/readyz"); c != 503 || body != "no lease\n" {
			t.Errorf("readyz: %d %q", c, body)
		}
		p.Health.Metrics(func(w io.Writer) {
			Family(w, "x_total", "counter", "Some\nthing.")
			Sample(w, "x_total", 3, "id", `a"b`, "state", "ready")
			Sample(w, "x_total", 0.5)
		})
		c, body := get("/metrics")
		if c != 200 || !strings.HasSuffix(body, "# HELP x_total Some\\nthing.\n# TYPE x_total counter\nx_total{id=\"a\\\"b\",state=\"ready\"} 3\nx_total 0.5\n") {
			t.Errorf("metrics: %d %s", c, body)
		}
		line := regexp.MustCompile(`^(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{([a-z_]+="([^"\\]|\\.)*",?)+\})? [0-9.e+-]+)$`)
		for l := range strings.Lines(body) {
			if !line.MatchString(strings.TrimSuffix(l, "\n")) {
				t.Errorf("not Prometheus text: %q", l)
			}
		}
		if !strings.Contains(body, "extmesh_nats_connected 1\n") {
			t.Error("no extmesh_nats_connected")
		}
		p.NC.Close()
		if c, body := get("/readyz"); c != 503 || !strings.Contains(body, "NATS") {
			t.Errorf("readyz without NATS: %d %s", c, body)
		}
		return nil
	})
	http.DefaultClient.CloseIdleConnections()
	if code != 0 {
		t.Errorf("exit %d", code)
	}
}

func TestLogFormats(t *testing.T) {
	for _, tc := range []struct {
		f    LogFlags
		want string
	}{
		{LogFlags{}, `"msg":"m"`}, // not a terminal
		{LogFlags{Format: "auto"}, `"msg":"m"`},
		{LogFlags{Format: "text"}, "msg=m"},
		{LogFlags{Format: "text", Level: "error"}, ""},
	} {
		var b bytes.Buffer
		l, err := tc.f.New(&b)
		if err != nil {
			t.Fatal(err)
		}
		l.Debug("d")
		l.Warn("m")
		if !strings.Contains(b.String(), tc.want) || (tc.want == "") != (b.Len() == 0) || strings.Contains(b.String(), "=d") {
			t.Errorf("%+v: %q, want %q", tc.f, b.String(), tc.want)
		}
	}
}

func TestBuildVersion(t *testing.T) {
	for want, info := range map[string]*debug.BuildInfo{
		"1.2.3": {Main: debug.Module{Version: "v1.2.3"}},
		"devel": {Main: debug.Module{Version: "(devel)"}},
		"devel-0123456789ab+dirty": {Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}}},
	} {
		if got := buildVersion(info); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if Version() == "" {
		t.Error("no version")
	}
}

// Mistakes on the command line, or in a file that it names, are reported before the program waits for NATS.
func TestProgramChecksItsFlags(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{errors.New("--n is odd"), "prog: error: --n is odd\nprog: hint: see prog --help\n"},
		{UsageError{Err: errors.New("x.yaml is empty"), Hint: "fill it"}, "prog: error: x.yaml is empty\nprog: hint: fill it\n"},
	} {
		var out bytes.Buffer
		p := Program{Name: "prog", Check: func(*slog.Logger) error { return tt.err }}
		if code := p.Execute(t.Context(), []string{"--server", "127.0.0.1:1"}, &out, &out); code != 2 || out.String() != tt.want {
			t.Errorf("exit %d, %s; want %s", code, &out, tt.want)
		}
	}
}

// The log of a stopped program shows the signal, that it is stopping, and when it has stopped.
func TestProgramLogsItsStop(t *testing.T) {
	emptyHome(t)
	srv := natstest.Start(t, &server.Options{Port: -1})
	ctx, cancel := context.WithCancelCause(t.Context())
	var log logBuffer
	code := runProgram(ctx, &log, []string{"--server", srv.ClientURL(), "--log-format", "text"}, func(ctx context.Context, p Process) error {
		cancel(errors.New("terminated signal received"))
		<-ctx.Done()
		p.Logger.Info("draining")
		return ctx.Err()
	})
	stops := regexp.MustCompile(`msg="prog is stopping; a second signal ends it immediately" reason="terminated signal received"\n`)
	ended := regexp.MustCompile(`msg=draining\n(.*\n)*.*msg="prog has stopped" took=\S+\n$`)
	if out := log.String(); code != 0 || !stops.MatchString(out) || !ended.MatchString(out) {
		t.Errorf("exit %d, %s", code, out)
	}
	// A program that ends by itself does not log a stop.
	var quiet logBuffer
	runProgram(t.Context(), &quiet, []string{"--server", srv.ClientURL()}, func(context.Context, Process) error { return nil })
	if out := quiet.String(); strings.Contains(out, "stop") {
		t.Error(out)
	}
}
