package door

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// TestMetrics counts requests of both eras, of each outcome, and refused ones.
func TestMetrics(t *testing.T) {
	b, d := helloBed(t)
	b.ready("gone", "mcp", tool("gone", "x")) // nobody answers
	w := d.web(t, HTTPOptions{})
	session := w.begin("2025-11-25")
	w.do("POST", "", pingLine, session)
	w.do("POST", "", modernList, modernHeader("tools/list", ""))
	w.do("POST", "", callMessage("1", "ext_hello_greet", ""), session)
	w.do("POST", "", callMessage("2", "nothing", ""), session)
	natstest.Eventually(t, "the tool is listed", func() bool { return d.view.now.Load().byName["ext_gone_x"] != nil })
	w.do("POST", "", callMessage("3", "ext_gone_x", ""), session)
	w.do("POST", "", `{"jsonrpc":"2.0","id":1,"method":"made/up","params":{}}`, session)
	w.do("POST", "", pingLine, session, map[string]string{"Origin": "http://evil.example"})
	_, stop := w.stream("GET", "", session)
	var out bytes.Buffer
	d.WriteMetrics(&out)
	stop()
	for _, want := range []string{
		`extmesh_mcp_requests_total{method="tools/list",era="modern",outcome="ok"} 1`,
		`extmesh_mcp_requests_total{method="tools/call",era="legacy",outcome="ok"} 1`,
		`extmesh_mcp_requests_total{method="tools/call",era="legacy",outcome="error"} 1`,
		`extmesh_mcp_requests_total{method="tools/call",era="legacy",outcome="failed"} 1`,
		`extmesh_mcp_requests_total{method="other",era="legacy",outcome="error"} 1`,
		`extmesh_mcp_request_duration_seconds_count{method="tools/call"} 3`,
		`extmesh_mcp_request_duration_seconds_bucket{method="tools/call",le="+Inf"} 3`,
		`extmesh_mcp_refused_total{reason="origin"} 1`, `extmesh_mcp_refused_total{reason="rate"} 0`,
		`extmesh_mcp_sessions 1`, `extmesh_mcp_streams 1`, `extmesh_mcp_inflight_calls 0`, `extmesh_mcp_view_tools{profile="default"} 2`,
	} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("there is no %s", want)
		}
	}
	if strings.Contains(out.String(), "made/up") {
		t.Error("a client has made a series")
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// TestAccessLog checks that the log has who called what, but no arguments, results, tokens and cookies.
func TestAccessLog(t *testing.T) {
	b := newBed(t)
	b.ready("x", "mcp", tool("x", "who"))
	b.serve("x", func(*nats.Msg, string, json.RawMessage) (string, error) { return `{"secret-result":1}`, nil })
	var log logBuffer
	d := b.door(Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	w := d.web(t, HTTPOptions{Tokens: loadTokens(t, writeTokens(t, "", "ada"))})
	call := callMessage("1", "ext_x_who", `,"arguments":{"password":"secret-argument"},`+modernMeta)
	w.do("POST", "?access_token=secret-query", call, modernHeader("tools/call", "ext_x_who"), auth("ada"), map[string]string{"Cookie": "c=secret-cookie"})
	w.do("POST", "", call, auth("mallory"))
	if got := log.String(); !strings.Contains(got, "status=200") || !strings.Contains(got, "client=ada message=tools/call tool=ext_x_who") ||
		!strings.Contains(got, `level=WARN msg="request refused" status=401 reason="the bearer token is unknown or has expired"`) {
		t.Errorf("the log is %s", got)
	}
	if strings.Contains(log.String(), "secret-") {
		t.Errorf("the log has a secret: %s", log.String())
	}
}

// TestTokenContext gives two tokens NATS credentials of their own, and lets NATS decide what they may call.
func TestTokenContext(t *testing.T) {
	users := []*server.User{{Username: "all", Password: "p"}, {Username: "ada", Password: "p", Permissions: &server.Permissions{
		Publish:   &server.SubjectPermission{Deny: []string{"ext.y.rpc", "ext.y.rpc.>"}},
		Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.ada.>"}},
	}}}
	b := newBedOn(t, &server.Options{Port: -1, JetStream: true, Users: users, NoAuthUser: "all"})
	for _, id := range []string{"x", "y"} {
		b.ready(id, "mcp", tool(id, "who"))
		b.serve(id, func(*nats.Msg, string, json.RawMessage) (string, error) { return `{"ran":true}`, nil })
	}
	d := b.door(Options{})
	path := writeTokens(t, ", context: ada.json", "ada")
	file := filepath.Join(filepath.Dir(path), "ada.json")
	if _, err := LoadTokens(path, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "ada.json") {
		t.Errorf("without the context: %v", err)
	}
	if err := os.WriteFile(file, []byte(`{"url":"nats://elsewhere.invalid","user":"ada","password":"p","inbox_prefix":"_INBOX.ada"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	own, err := daemon.NATSFlags{Server: b.srv.ClientURL()}.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	dialled := 0
	dial := func(ctx context.Context, natsContext string, catalog *mesh.Catalog) (Connection, error) {
		dialled++
		as, err := own.As(natsContext)
		if err != nil {
			return Connection{}, err
		}
		nc, err := as.Connect(ctx, daemon.ConnectOptions{})
		if err != nil {
			return Connection{}, err
		}
		return Connection{Client: mesh.NewClient(nc, mesh.ClientOptions{Catalog: catalog, Timeout: d.CallTimeout()}), IsClosed: nc.IsClosed, Close: nc.Close}, nil
	}
	w := d.web(t, HTTPOptions{Tokens: loadTokens(t, path), Dial: dial})
	t.Cleanup(w.h.dialled.close)
	call := func(id string) string {
		name := "ext_" + id + "_who"
		return w.do("POST", "", callMessage("1", name, ","+modernMeta), modernHeader("tools/call", name), auth("ada")).body
	}
	for range 2 {
		if got := call("x"); !strings.Contains(got, `"ran":true`) {
			t.Errorf("a permitted call: %s", got)
		}
		if got := call("y"); !strings.Contains(got, "This client may not use y. ext_y_who was not run.") {
			t.Errorf("a call that NATS denies: %s", got)
		}
	}
	if dialled != 1 {
		t.Errorf("%d connections for one token", dialled)
	}
	setUser := func(user, password string) {
		if err := os.WriteFile(file, []byte(`{"user":"`+user+`","password":"`+password+`","inbox_prefix":"_INBOX.ada"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	setUser("grace", "p")
	b.srv.Restart(func(o *server.Options) { o.Users[1].Username = "grace" })
	natstest.Eventually(t, "the changed context is read after NATS has refused the old user", func() bool { return strings.Contains(call("x"), `"ran":true`) })
	if dialled < 2 {
		t.Error("NATS did not refuse the old user")
	}
	setUser("grace", "wrong")
	w.h.dialled.all[file].conn.Close()
	if got := call("x"); !strings.Contains(got, "not reachable with the credentials of this client") || strings.Contains(got, `"ran":true`) {
		t.Errorf("with a wrong password: %s", got)
	}
}
