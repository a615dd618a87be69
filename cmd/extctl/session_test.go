package main

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// users authenticates the clients of a server by name. Changing the server's own users would need a reload of its
// options, which has a data race with clients that it disconnects.
type users struct {
	mu   sync.Mutex
	user map[string]server.User
}

func (u *users) Check(c server.ClientAuthentication) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	user, ok := u.user[c.GetOpts().Username]
	if ok = ok && user.Password == c.GetOpts().Password; ok {
		c.RegisterUser(&user)
	}
	return ok
}

// changePassword sets another password and disconnects the user.
func (u *users) changePassword(t *testing.T, b *bed, name, password string) {
	t.Helper()
	u.mu.Lock()
	user := u.user[name]
	user.Password = password
	u.user[name] = user
	u.mu.Unlock()
	all, err := b.srv.Connz(&server.ConnzOptions{Username: true, User: name})
	if err != nil || len(all.Conns) == 0 {
		t.Fatalf("%s is not connected: %v", name, err)
	}
	for _, c := range all.Conns {
		_ = b.srv.DisconnectClientByID(c.Cid) // it may have disconnected already
	}
}

// bedWithUsers has two users: bed for the test, and op in the URL.
func bedWithUsers(t *testing.T, op server.User) (*bed, *users) {
	t.Helper()
	op.Username, op.Password = "op", "first"
	all := &users{user: map[string]server.User{"bed": {Username: "bed", Password: "bed"}, "op": op}}
	b, stop, err := newBedWith(t.TempDir(), &server.Options{CustomClientAuthentication: all}, nats.UserInfo("bed", "bed"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.url = strings.Replace(b.url, "nats://", "nats://op:first@", 1)
	return b, all
}

// TestCredentialsRevoked changes a password while commands run. NATS will not accept the old one again, so the commands
// must exit.
func TestCredentialsRevoked(t *testing.T) {
	t.Parallel()
	b, all := bedWithUsers(t, server.User{})
	b.serveControl(t, "b2", func() {})
	b.putExtension(t, "x", "gone", "b2")
	called := make(chan bool, 500) // the warm-up calls are not measured
	if err := b.answer(wire.Prefix(wire.DefaultPrefix).RPC("busy"), func(string, json.RawMessage) (string, *rpc.Error) {
		select {
		case called <- true:
		default:
		}
		return "{}", nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.kv.PutString(t.Context(), "spec.busy", `{"id":"busy","version":"1.0.0","tools":[{"name":"ext_busy_do","tool":"do"}]}`); err != nil {
		t.Fatal(err)
	}
	verbs := []struct {
		line  string
		until string // printed when the command is running
		run   *upRun
	}{
		{line: "watch", until: "watching from revision"},
		{line: "logs -f x", until: "bridge gone is not available"},
		{line: "logs -f x --json", until: "bridge gone is not available"},
		{line: "bench ext_busy_do --duration 5m --json"},
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range verbs {
		u := &upRun{cancel: cancel, done: make(chan int, 1)}
		verbs[i].run = u
		go func() { // ends with cancel
			u.done <- run(ctx, append(strings.Fields(verbs[i].line), "--server", b.url), nil, &u.out, &u.err, func(string) string { return "" })
		}()
		u.await(t, verbs[i].until)
	}
	for range cap(called) {
		<-called
	}
	if out := verbs[1].run.out.String(); !strings.HasSuffix(out, "from b2\n") {
		t.Errorf("logs -f: %q, without the live line", out)
	}
	all.changePassword(t, b, "op", "second")
	late := time.After(time.Minute)
	for _, v := range verbs {
		select {
		case code := <-v.run.done:
			text := v.run.err.String()
			if strings.HasPrefix(v.line, "bench") {
				text = v.run.out.String()
				if out := decodeOutput(t, text); out.Error == nil || out.Error.Kind != "denied" || out.Error.Hint == "" {
					t.Errorf("%s: %s", v.line, text)
				}
			}
			if code != exitDenied || !strings.Contains(strings.ToLower(text+v.run.out.String()), "nats closed the connection: nats: authorization violation") {
				t.Errorf("%s: exit code %d, %s", v.line, code, text)
			}
		case <-late:
			t.Fatalf("%s still runs", v.line)
		}
	}
}

// TestCallDenied: requests that NATS denies fail immediately, without waiting for the timeout.
func TestCallDenied(t *testing.T) {
	t.Parallel()
	b, _ := bedWithUsers(t, server.User{Permissions: &server.Permissions{Publish: &server.SubjectPermission{
		Deny: []string{"ext.registry.rpc", "ext.x.rpc", "other.y.rpc", "ext.control.b1"},
	}}})
	for key, value := range map[string]string{
		"spec.x": `{"id":"x","version":"1.0.0","tools":[{"name":"ext_x_do","tool":"do"}]}`,
		"spec.y": `{"id":"y","version":"1.0.0","subject":"other.y.rpc","tools":[{"name":"ext_y_do","tool":"do"}]}`,
	} {
		if _, err := b.kv.PutString(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	b.putExtension(t, "z", "b1", "b2")
	b.serveControl(t, "b2", func() {})
	for line, subject := range map[string]string{
		"call ext_x_do":         "ext.x.rpc",
		"call x/do":             "ext.x.rpc",
		"call y/do":             "other.y.rpc",
		"bench ext_x_do":        "ext.x.rpc",
		"bench ext_y_do":        "other.y.rpc",
		"restart z --bridge b1": "ext.control.b1",
		"restart z":             "ext.control.b1",
		"show registry":         "ext.registry.rpc",
	} {
		began := time.Now()
		code, _, stderr := extctl(t.Context(), b.url, append(strings.Fields(line), "--timeout", "2m")...)
		if code != exitDenied || !strings.Contains(stderr, subject) {
			t.Errorf("%s: exit code %d, %q; want 14 and %s", line, code, stderr, subject)
		}
		if took := time.Since(began); took > time.Minute {
			t.Fatalf("%s took %s", line, took)
		}
	}
}
