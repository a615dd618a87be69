package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// TestMain makes the test binary run as extctl if that is its name.
func TestMain(m *testing.M) {
	child.MaybeGuard()
	_ = flag.Set("test.parallel", "6") // most of their time the tests wait; the command line overrides it
	for _, limit := range []*time.Duration{&completeTimeout, &exitsTimeout, &registryProbe, &resolveTimeout} {
		*limit = time.Minute // after it a command does without an answer, which a busy machine delays
	}
	followTimeout = 20 * time.Second
	testscript.Main(m, map[string]func(){"extctl": main})
}

// TestScript runs testdata/script. Every script has its own NATS server (at NATS_URL) and an empty
// catalog. In addition to testscript's own commands there are
//
//	put KEY FILE   write FILE's text under KEY in the catalog
//	del KEY        delete KEY
//	fake ID        run an extension that answers calls; see fakeExtension
//	bridge NAME    run a bridge that answers control requests; see fakeBridge
//	registry       run a registry that answers resolve; see fakeRegistry
//	run extctl ARG…
//	               like exec, but in this process and with --server. Paths of files are not relative to the script's
//	completes LINE PROGRAM ARG…
//	               run the program, which must print the line
//	timesout TEXT PROGRAM ARG…
//	               run the program with a timeout that it exceeds, printing TEXT; see withTimeouts
func TestScript(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup:               setupScript,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"put": func(ts *testscript.TestScript, _ bool, args []string) {
				_, err := bedOf(ts).kv.PutString(context.Background(), args[0], ts.ReadFile(args[1]))
				ts.Check(err)
			},
			"del": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(bedOf(ts).kv.Delete(context.Background(), args[0]))
			},
			"run":      runs,
			"fake":     func(ts *testscript.TestScript, _ bool, args []string) { ts.Check(bedOf(ts).fakeExtension(args[0])) },
			"registry": func(ts *testscript.TestScript, _ bool, _ []string) { ts.Check(bedOf(ts).fakeRegistry()) },
			"timesout": timesOut, "completes": completes,
			"bridge": func(ts *testscript.TestScript, _ bool, args []string) { ts.Check(bedOf(ts).fakeBridge(args[0])) },
		},
	})
}

// runs runs extctl in this process: to start another one takes longer than most commands.
func runs(ts *testscript.TestScript, neg bool, args []string) {
	url := ts.Getenv("NATS_URL")
	if len(args) == 0 || args[0] != "extctl" || url == "" {
		ts.Fatalf("usage: run extctl ARG…, with NATS_URL in the environment")
	}
	args = append([]string{"--server", url}, args[1:]...)
	if code := run(context.Background(), args, strings.NewReader(""), ts.Stdout(), ts.Stderr(), ts.Getenv); (code != 0) != neg {
		ts.Fatalf("exit code %d", code)
	}
}

// withTimeouts tries longer and longer timeouts until holds returns true. On a loaded machine a short timeout may end
// before extctl has read the catalog, and a timeout that is always sufficient would make every test slow.
func withTimeouts(holds func(timeout string) bool) bool {
	return slices.ContainsFunc([]string{"100ms", "1s", "5s", "20s"}, holds)
}

func timesOut(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: timesout TEXT PROGRAM ARG…")
	}
	if !withTimeouts(func(timeout string) bool {
		err := ts.Exec(args[1], append(args[2:len(args):len(args)], "--timeout", timeout)...)
		exit, ok := errors.AsType[*exec.ExitError](err)
		return ok && exit.ExitCode() == exitTimeout && strings.Contains(ts.ReadFile("stdout")+ts.ReadFile("stderr"), args[0])
	}) {
		ts.Fatalf("it does not time out with the message %q", args[0])
	}
}

func completes(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: completes LINE PROGRAM ARG…")
	}
	ts.Check(ts.Exec(args[1], args[2:]...))
	if !slices.Contains(strings.Split(ts.ReadFile("stdout"), "\n"), args[0]) {
		ts.Fatalf("no line %q", args[0])
	}
}

type bedKey struct{}

func bedOf(ts *testscript.TestScript) *bed { return ts.Value(bedKey{}).(*bed) }

func setupScript(env *testscript.Env) error {
	b, stop, err := newBed(filepath.Join(env.WorkDir, ".nats"))
	if err != nil {
		return err
	}
	env.Defer(stop)
	if _, err := b.kv.PutString(context.Background(), "epoch.registry", `{"catalog_id":"2026-01-02T03:04:05Z"}`); err != nil {
		return err
	}
	env.Values[bedKey{}] = b
	env.Setenv("NATS_URL", b.url)
	env.Setenv("GORACE", "atexit_sleep_ms=0") // a second for every extctl, otherwise
	env.Setenv("XDG_DATA_HOME", filepath.Join(env.WorkDir, ".data"))
	env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, ".config"))
	return nil
}

// bed is a NATS server with an empty catalog, on which a test acts as registry, bridge and extensions.
type bed struct {
	url string
	srv *server.Server
	nc  *nats.Conn
	kv  jetstream.KeyValue
}

func newBed(dir string) (b *bed, stop func(), err error) { return newBedWith(dir, &server.Options{}) }

// newBedWith makes a bed with the server options o; opts are options of the bed's own connection.
func newBedWith(dir string, o *server.Options, opts ...nats.Option) (b *bed, stop func(), err error) {
	o.AuthTimeout = cmp.Or(o.AuthTimeout, 60)
	o.Host, o.Port, o.JetStream, o.StoreDir, o.NoLog, o.NoSigs = "127.0.0.1", -1, true, dir, true, true
	srv, err := server.NewServer(o)
	if err != nil {
		return nil, nil, err
	}
	srv.Start()
	stop = func() { srv.Shutdown(); srv.WaitForShutdown() }
	if !srv.ReadyForConnections(time.Minute) {
		return nil, stop, errors.New("server not ready")
	}
	b = &bed{url: srv.ClientURL(), srv: srv}
	if b.nc, err = nats.Connect(b.url, append(opts, nats.Timeout(time.Minute))...); err != nil {
		return nil, stop, err
	}
	stop = func() { b.nc.Close(); srv.Shutdown(); srv.WaitForShutdown() }
	js, err := jetstream.New(b.nc, jetstream.WithDefaultTimeout(time.Minute))
	if err == nil {
		b.kv, err = js.CreateKeyValue(context.Background(), jetstream.KeyValueConfig{
			Bucket: "ext_catalog", LimitMarkerTTL: time.Minute,
			RePublish: &jetstream.RePublish{Source: "$KV.ext_catalog.>", Destination: "ext.registry.catalog.>"},
		})
	}
	return b, stop, err
}

// answer serves JSON-RPC on a subject.
func (b *bed) answer(subject string, f func(method string, params json.RawMessage) (string, *rpc.Error)) error {
	_, err := b.nc.QueueSubscribe(subject, wire.QueueGroup, func(m *nats.Msg) {
		env, err := jsonrpc.Scan(m.Data)
		if err != nil {
			return
		}
		result, e := f(env.MethodName(), env.Params)
		switch {
		case e != nil:
			_ = m.Respond(jsonrpc.AppendError(nil, env.ID, e))
		case result != "":
			_ = m.Respond(jsonrpc.AppendResult(nil, env.ID, json.RawMessage(result)))
		}
	})
	if err != nil {
		return err
	}
	return b.nc.Flush()
}

// fakeExtension answers tools/echo with its arguments, tools/exact with a result that must not be re-encoded,
// tools/iserror with an MCP error, tools/fail with its own error, tools/gone as a bridge does after its child has exited,
// and never answers tools/slow.
func (b *bed) fakeExtension(id string) error {
	return b.answer(wire.Prefix(wire.DefaultPrefix).RPC(id), func(method string, params json.RawMessage) (string, *rpc.Error) {
		switch strings.TrimPrefix(method, "tools/") {
		case "echo":
			return string(params), nil
		case "exact":
			return `{"big":9007199254740993, "huge":1e400,"one":1.0,"html":"<&>","esc":"\u00e9\/"}`, nil
		case "iserror":
			return `{"content":[],"isError":true}`, nil
		case "fail":
			return "", &rpc.Error{Code: 7, Message: "no such city", Data: json.RawMessage(`{"city":"Atlantis"}`)}
		case "gone":
			return "", rpc.NewError(rpc.CodeExited, rpc.Details{Status: "exit status 3"}, "it exited")
		case "slow":
			return "", nil
		case "hooks/before_message":
			if strings.Contains(string(params), "spam") {
				return `{"abort":true,"reason":"spam"}`, nil
			}
			return `{"override":{"text":"hushed"}}`, nil
		case "ping":
			return "{}", nil
		}
		return "", rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "no method %s", method)
	})
}

// fakeBridge answers the control requests of extctl.
func (b *bed) fakeBridge(name string) error {
	return b.answer(wire.Prefix(wire.DefaultPrefix).Control(name), func(method string, params json.RawMessage) (string, *rpc.Error) {
		switch method {
		case "restart", "drain":
			return `{"instances":["i1"]}`, nil
		case "reload":
			return `{"started":["new"],"replaced":[],"stopped":["old"]}`, nil
		case "status":
			return `{"bridge":"` + name + `","instances":[{"id":"other","instance":"i0","last_exit":{"status":"exit status 9"}},` +
				`{"id":"weather","instance":"i1","last_exit":{"status":"signal SIGKILL","uptime_secs":61.5,"cause":"it hangs","stderr_tail":"one\ntwo \u001b[31mred\n","at":"2026-01-02T03:04:05Z"}}]}`, nil
		case "logs":
			return `{"lines":[{"id":"weather","instance":"NUID1234","ts":"2026-01-02T03:04:05Z","line":"hello \u001b[31mred"},` +
				`{"id":"weather","bridge":"b1","replica":2,"instance":"NUID1234","ts":"2026-01-02T03:04:06Z","stream":"stdout","line":"` + strings.ReplaceAll(string(params), `"`, `'`) + `"}]}`, nil
		}
		return "", rpc.Errorf(rpc.CodeMethodNotFound, rpc.RanNo, "no method %s", method)
	})
}

// fakeRegistry resolves one name to weather's echo, and returns an ambiguity for another.
func (b *bed) fakeRegistry() error {
	return b.answer(wire.Prefix(wire.DefaultPrefix).RegistryRPC(), func(method string, params json.RawMessage) (string, *rpc.Error) {
		switch {
		case method == "status":
			return `{"name":"r1","leading":true,"leader":"r1","jetstream":"ok","tools":6,"replicas":[{"name":"r1","leading":true},{"name":"r2"}]}`, nil
		case strings.Contains(string(params), "ext_weather_"):
			return `{"catalog_id":"2026-01-02T03:04:05Z","revision":7,"age_ms":100,"id":"weather","tool":{"name":"ext_weather_echo","tool":"echo",` +
				`"description":"","input_schema":{"type":"object","properties":{"days":{"type":"integer"}}}},` +
				`"spec":{"id":"weather","version":"1.2.0","dialect":"ext","subject":"ext.weather.rpc"},"state":{"state":"ready","available":true,"instances":[]}}`, nil
		case strings.Contains(string(params), "ext_twice"):
			return "", &rpc.Error{Code: rpc.CodeInvalidParams, Message: "ambiguous", Data: json.RawMessage(
				`{"kind":"ambiguous","ran":"no","candidates":[{"id":"a","tool":"x","name":"ext_a_x_1"},{"id":"b","tool":"x","name":"ext_b_x_2"}]}`)}
		}
		return "", &rpc.Error{Code: rpc.CodeInvalidParams, Message: "no", Data: json.RawMessage(`{"kind":"not_found","ran":"no","nearest":["ext_weather_echo"]}`)}
	})
}
