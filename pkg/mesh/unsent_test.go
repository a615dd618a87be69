package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/freeport"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// received answers the requests of the extension x and returns their methods.
func received(t *testing.T, nc *nats.Conn) (methods func() []string) {
	t.Helper()
	var mu sync.Mutex
	var all []string
	_, err := nc.Subscribe("ext.x.rpc", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		var request struct{ Method string }
		if err := json.Unmarshal(m.Data, &request); err != nil {
			t.Error(err)
		}
		all = append(all, request.Method)
		_ = m.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
	})
	if err == nil {
		err = nc.FlushTimeout(time.Minute)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(all) }
}

// TestCancelledBefore: a call whose context has ended is not sent.
func TestCancelledBefore(t *testing.T) {
	nc := natstest.Start(t, nil).Connect()
	methods := received(t, nc)
	client := NewClient(nc, ClientOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Call(ctx, "x/delete", nil); !errors.Is(err, rpc.CodeCancelled) || rpc.AsError(err).Details().Ran != rpc.RanNo {
		t.Errorf("%v", err)
	}
	if _, err := client.Call(t.Context(), "x/read", nil); err != nil {
		t.Error(err)
	}
	if got := methods(); !slices.Equal(got, []string{"tools/read"}) {
		t.Errorf("sent: %q", got)
	}
}

// TestArgumentsWithAMethod: arguments are not JSON, and would make a request for another method.
func TestArgumentsWithAMethod(t *testing.T) {
	nc := natstest.Start(t, nil).Connect()
	methods := received(t, nc)
	client := NewClient(nc, ClientOptions{})
	for _, args := range []string{`{},"method":"tools/delete"`, `{}}{`, `{"a":}`, ` `} {
		if _, err := client.Call(t.Context(), "x/read", json.RawMessage(args)); !errors.Is(err, rpc.CodeInvalidParams) || rpc.AsError(err).Details().Ran != rpc.RanNo {
			t.Errorf("%s: %v", args, err)
		}
		if _, err := client.CallExt(t.Context(), "x", "tools/read", json.RawMessage(args)); !errors.Is(err, rpc.CodeInvalidParams) {
			t.Errorf("%s as params: %v", args, err)
		}
	}
	if got := methods(); len(got) > 0 {
		t.Errorf("sent: %q", got)
	}
}

// TestDeniedCall: a call that NATS denies fails as such, although nothing answers, and is neither repeated nor reported.
func TestDeniedCall(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, &server.Options{Port: -1, NoAuthUser: "all",
		Users: []*server.User{{Username: "all", Password: "x"}, {Username: "agent", Password: "x",
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"ext.x.>"}}}}}})
	suspects, err := srv.Connect().SubscribeSync("ext.registry.suspect.>")
	if err != nil {
		t.Fatal(err)
	}
	agent := srv.Connect(nats.UserInfo("agent", "x"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	client := NewClient(agent, ClientOptions{Timeout: time.Minute})
	for range 2 { // with an old denial, too
		_, err := client.Call(t.Context(), "x/read", nil)
		if !errors.Is(err, rpc.CodeUnavailable) || !errors.Is(err, ErrDenied) || rpc.AsError(err).Details().Ran != rpc.RanNo || !strings.Contains(err.Error(), "does not allow this user to call x (publish to ext.x.rpc)") {
			t.Errorf("%v", err)
		}
	}
	if err := agent.FlushTimeout(time.Minute); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := suspects.Pending(); n > 0 {
		t.Errorf("%d reports", n)
	}
	natstest.Eventually(t, "a call that ends before silence is noticed is denied, too", func() bool {
		_, err := NewClient(agent, ClientOptions{Timeout: time.Second}).Call(t.Context(), "x/read", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, limited := client.Call(ctx, "x/read", nil)
		return errors.Is(err, ErrDenied) && errors.Is(limited, ErrDenied)
	})
}

// TestDeniedCalls: each of the calls that NATS denies at the same time fails at once.
func TestDeniedCalls(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, &server.Options{Port: -1, NoAuthUser: "all",
		Users: []*server.User{{Username: "all", Password: "x"}, {Username: "agent", Password: "x",
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"ext.denied0.>", "ext.denied1.>"}}}}}})
	agent, err := Connect(srv.ClientURL(), nats.UserInfo("agent", "x"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	client := NewClient(agent, ClientOptions{Timeout: time.Minute})
	var calls sync.WaitGroup
	defer calls.Wait()
	for n := range 2 {
		calls.Go(func() { // ends with its call
			_, err := client.Call(t.Context(), fmt.Sprintf("denied%d/read", n), nil)
			if !errors.Is(err, rpc.CodeUnavailable) || !strings.Contains(fmt.Sprint(err), "does not allow this user") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestCallDuringConnectionAttempt: a call does not wait for a server that accepts the connection and does not answer.
func TestCallDuringConnectionAttempt(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, &server.Options{Port: -1})
	nc, err := Connect(srv.ClientURL(), nats.Timeout(2*time.Minute)) // of the attempt
	if err != nil {
		t.Fatal(err)
	}
	client := NewClient(nc, ClientOptions{WaitReady: -1})
	address := srv.Addr().String()
	srv.Stop()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	silent, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	defer silent.Close() // ends the attempt
	defer l.Close()      // and no other begins
	failed := make(chan error, 1)
	go func() { // ends with its call
		_, err := client.Call(t.Context(), "x/read", nil)
		failed <- err
	}()
	select {
	case err = <-failed:
	case <-time.After(time.Minute):
		err = errors.New("the call waits for the connection")
	}
	if !errors.Is(err, rpc.CodeUnavailable) || rpc.AsError(err).Details().Ran != rpc.RanNo {
		t.Error(err)
	}
}

// TestCallBeforeConnection: a call before the first connection fails as one during an interruption does.
func TestCallBeforeConnection(t *testing.T) {
	nc, err := Connect("nats://"+freeport.Addr(t), nats.RetryOnFailedConnect(true))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := NewClient(nc, ClientOptions{WaitReady: -1}).Call(t.Context(), "x/read", nil); !errors.Is(err, rpc.CodeUnavailable) || rpc.AsError(err).Details().Ran != rpc.RanNo {
		t.Errorf("%v", err)
	}
}

// TestClosedDuringCall: a call whose connection is closed or drained fails at once, and so do later ones.
func TestClosedDuringCall(t *testing.T) {
	srv := natstest.Start(t, nil)
	requested := make(chan struct{}, 1)
	nc := srv.Connect()
	if _, err := nc.Subscribe("ext.x.rpc", func(*nats.Msg) { requested <- struct{}{} }); err != nil { // it never answers
		t.Fatal(err)
	}
	if err := nc.FlushTimeout(time.Minute); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(*nats.Conn){"closed": (*nats.Conn).Close, "drained": func(nc *nats.Conn) { _ = nc.Drain() }} {
		caller := srv.Connect()
		client := NewClient(caller, ClientOptions{Timeout: time.Hour})
		failed := make(chan error, 1)
		go func() { // ends with the connection
			_, err := client.Call(t.Context(), "x/wait", nil)
			failed <- err
		}()
		<-requested
		end(caller)
		if err := <-failed; !errors.Is(err, nats.ErrConnectionClosed) || rpc.AsError(err).Details().Ran != rpc.RanMaybe {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := client.Call(t.Context(), "x/wait", nil); !errors.Is(err, nats.ErrConnectionClosed) {
			t.Errorf("%s, another call: %v", name, err)
		}
	}
}

// TestClosedDuringRepeatableCall: a call of a tool that may be repeated is not reported as not run, only because the repetition is
// not sent any more.
func TestClosedDuringRepeatableCall(t *testing.T) {
	b := newCatalogBed(t)
	b.bucket()
	b.put("spec.x", wire.Spec{ID: "x", Version: "1.0.0", Subject: "ext.x.rpc", Tools: []wire.Tool{{Name: "ext_x_read", Own: "read",
		Extra: []wire.Member{{Key: "annotations", Value: json.RawMessage(`{"readOnlyHint":true}`)}}}}})
	b.put("state.x", wire.StateDoc{State: heartbeat.Ready, Available: true})
	catalog := b.follow(CatalogOptions{})
	await(t, catalog, "it is there", has("x", heartbeat.Ready))
	requested := make(chan struct{}, 1)
	nc := b.connect()
	if _, err := nc.Subscribe("ext.x.rpc", func(*nats.Msg) { requested <- struct{}{} }); err != nil { // it never answers
		t.Fatal(err)
	}
	if err := nc.FlushTimeout(time.Minute); err != nil {
		t.Fatal(err)
	}
	caller := b.connect()
	client := NewClient(caller, ClientOptions{Timeout: time.Hour, Catalog: catalog})
	failed := make(chan error, 1)
	go func() { // ends with the connection
		_, err := client.Call(t.Context(), "ext_x_read", nil)
		failed <- err
	}()
	<-requested
	caller.Close()
	if err := <-failed; !errors.Is(err, nats.ErrConnectionClosed) || rpc.AsError(err).Details().Ran != rpc.RanMaybe {
		t.Error(err)
	}
}
