package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/adrg/xdg"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/internal/natsd"
	"github.com/extmesh/extmesh/internal/natsd/storelock"
	"github.com/extmesh/extmesh/internal/natstest"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// emptyHome gives the test a home directory without data and configuration.
func emptyHome(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_DATA_HOME", filepath.Join(dir, "data"))
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
	t.Setenv("NATS_URL", "")
	xdg.Reload()
	t.Cleanup(xdg.Reload)
	return dir
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestResolveOrder(t *testing.T) {
	home := emptyHome(t)
	check := func(f NATSFlags, addr, source string) {
		t.Helper()
		got, err := f.Resolve()
		if err != nil || got.Addr() != addr || got.Source != source {
			t.Errorf("%+v: %s from %s, %v; want %s from %s", f, got.Addr(), got.Source, err, addr, source)
		}
	}
	check(NATSFlags{}, "nats://127.0.0.1:4222", "the default")

	contexts := filepath.Join(home, "config", "nats")
	writeFile(t, filepath.Join(contexts, "context", "prod.json"), `{"url":"nats://prod:4222","user":"u","password":"p"}`)
	writeFile(t, filepath.Join(contexts, "context", "dev.json"), `{"url":"nats://dev:4222,nats://dev2:4222"}`)
	writeFile(t, filepath.Join(contexts, "context.txt"), "prod\n")
	check(NATSFlags{}, "nats://prod:4222", "the selected nats context prod")

	srv, err := natsd.Start(natsd.Config{StoreDir: StoreDir(""), Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	check(NATSFlags{}, srv.ClientURL(), "the running extctl up")
	notUsed := func(f NATSFlags, want ...string) {
		t.Helper()
		if got, err := f.Resolve(); err != nil || !slices.Equal(got.NotUsed, want) {
			t.Errorf("%+v: not used: %q, %v; want %q", f, got.NotUsed, err, want)
		}
	}
	notUsed(NATSFlags{}, "the selected nats context prod")
	notUsed(NATSFlags{Server: srv.ClientURL()})
	t.Setenv("NATS_URL", strings.Replace(srv.ClientURL(), "//", "//u:p@", 1))
	notUsed(NATSFlags{})
	t.Setenv("NATS_URL", "nats://env:1, nats://u:secret@env2:2")
	check(NATSFlags{}, "nats://env:1,nats://u:xxxxx@env2:2", "NATS_URL")
	notUsed(NATSFlags{}, "the running extctl up")
	notUsed(NATSFlags{Context: "dev"})
	check(NATSFlags{Context: "dev"}, "nats://dev:4222,nats://dev2:4222", "nats context dev")
	check(NATSFlags{Context: "dev", Server: "h"}, "nats://h", "--server")
}

func TestResolveContextSettings(t *testing.T) {
	home := emptyHome(t)
	writeFile(t, filepath.Join(home, "config", "nats", "context", "c.json"),
		`{"url":"nats://h:1","user":"u","password":"p","inbox_prefix":"_INBOX.u"}`)
	got, err := NATSFlags{Context: "c"}.Resolve()
	if err != nil || got.base.User != "u" || got.base.Password != "p" || got.base.InboxPrefix != "_INBOX.u" {
		t.Errorf("%+v, %v", got.base, err)
	}
}

// TestPasswordWithoutScheme: an address without a scheme is that of NATS, and its password is known as one.
func TestPasswordWithoutScheme(t *testing.T) {
	home := emptyHome(t)
	writeFile(t, filepath.Join(home, "config", "nats", "context", "c.json"), `{"url":"ada:s3cret-s3cret@h:1, t0ken-t0ken@h:2"}`)
	for _, f := range []NATSFlags{{Server: "ada:s3cret-s3cret@h:1,t0ken-t0ken@h:2"}, {Context: "c"}} {
		got, err := f.Resolve()
		if err != nil || !slices.Contains(got.Secrets.Values, "s3cret-s3cret") || !slices.Contains(got.Secrets.Values, "t0ken-t0ken") {
			t.Errorf("%+v, %v", got.Secrets, err)
		}
		if addr := got.Addr(); strings.Contains(addr, "s3cret") || strings.Contains(addr, "t0ken") || !strings.Contains(addr, "@h:1") {
			t.Errorf("the address is %s", addr)
		}
	}
}

func TestResolveMistakes(t *testing.T) {
	home := emptyHome(t)
	writeFile(t, filepath.Join(home, "config", "nats", "context", "broken.json"), `{`)
	for want, f := range map[string]NATSFlags{
		"nats context nowhere": {Context: "nowhere"},
		"nats context broken":  {Context: "broken"},
		"want nats, tls":       {Server: "http://h:1"},
		"has no host":          {Server: "nats://"},
		"special characters":   {Server: "nats://u:s3cret/x@h:1"},
		"as in %2F":            {Server: "nats://u:s3cret%zz@h:1"},
		"not http":             {Server: "http://u:s3cret@h:1"},
		"h:2: want nats":       {Server: "http://s3cret@h:2"},
		"--creds":              {Creds: filepath.Join(home, "missing")},
		"--nkey":               {NKey: filepath.Join(home, "missing")},
		"go together":          {TLSCert: "c"},
	} {
		_, err := f.Resolve()
		if err == nil || !errors.As(err, new(UsageError)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want a usage error with %q", f, err, want)
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error has the password: %v", err)
		}
	}
}

// TestResolveAddsThePassword: programs of the user who runs `extctl up` need no flags to use its server, by default and
// by its address. The password is sent to no other address.
func TestResolveAddsThePassword(t *testing.T) {
	home := emptyHome(t)
	srv, err := natsd.Start(natsd.Config{StoreDir: StoreDir(""), Port: -1, RequirePassword: true})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	plain := srv.ClientURL()
	up, _ := storelock.Running(StoreDir(""))
	if up.Password == "" || !strings.Contains(up.URLWithPassword(), "extmesh:"+up.Password+"@127.0.0.1:") {
		t.Fatalf("%+v", up)
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(plain, "nats://"), ":")
	seed := filepath.Join(home, "seed")
	writeFile(t, seed, testSeed)
	for _, tt := range []struct {
		flags NATSFlags
		added bool
	}{
		{NATSFlags{}, true},
		{NATSFlags{Server: plain}, true},
		{NATSFlags{Server: "localhost:" + port}, true},
		{NATSFlags{Server: "127.0.0.1:" + port}, true},
		{NATSFlags{Server: strings.Replace(plain, "//", "//u:p@", 1)}, false},
		{NATSFlags{Server: "127.0.0.1:1"}, false},
		{NATSFlags{Server: "10.0.0.1:" + port}, false},
		{NATSFlags{Server: plain + ",127.0.0.1:1"}, false},
		{NATSFlags{Server: plain, NKey: seed}, false},
	} {
		target, err := tt.flags.Resolve()
		if err != nil {
			t.Fatal(err)
		}
		if (target.base.Password == up.Password) != tt.added || strings.Contains(target.Addr(), up.Password) {
			t.Errorf("%+v: password %q, address %s", tt.flags, target.base.Password, target.Addr())
		}
		if tt.added != slices.Contains(target.Secrets.Values, up.Password) || tt.added != slices.Contains(target.Secrets.Files, storelock.NotePath(StoreDir(""))) {
			t.Errorf("%+v: secrets %+v", tt.flags, target.Secrets)
		}
		if tt.added != (target.URLs() == up.URLWithPassword()) {
			t.Errorf("%+v: URLs %s", tt.flags, target.URLs())
		}
		nc, err := target.Connect(t.Context(), ConnectOptions{})
		if err == nil {
			nc.Close()
		}
		if (err == nil) != tt.added && !strings.Contains(tt.flags.Server, ",") {
			t.Errorf("%+v: connecting: %v", tt.flags, err)
		}
	}
	inside, err := InProcess(srv.InProcess())
	if err != nil || !slices.Contains(inside.Secrets.Values, up.Password) {
		t.Errorf("in process: %+v, %v", inside.Secrets, err)
	}
}

// TestNewPassword: an `extctl up` that is started again on the same port has another password. Connections get it when they
// reconnect, and an address in NATS_URL with the earlier password leads to the present one.
func TestNewPassword(t *testing.T) {
	emptyHome(t)
	srv, err := natsd.Start(natsd.Config{StoreDir: StoreDir(""), Port: -1, RequirePassword: true})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown()
	first, err := NATSFlags{}.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	reconnected := make(chan struct{}, 1)
	nc, err := first.Connect(t.Context(), ConnectOptions{Extra: []nats.Option{nats.ReconnectHandler(func(*nats.Conn) { reconnected <- struct{}{} })}})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	u, err := url.Parse(srv.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	srv.Shutdown()
	next, err := natsd.Start(natsd.Config{StoreDir: StoreDir(""), Port: port, RequirePassword: true})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Shutdown()
	<-reconnected // or the test times out

	t.Setenv("NATS_URL", first.URLs())
	again, err := NATSFlags{}.Resolve()
	if up, _ := storelock.Running(StoreDir("")); err != nil || again.URLs() != up.URLWithPassword() || again.URLs() == first.URLs() {
		t.Errorf("%s, %v; at first it was %s", again.URLs(), err, first.URLs())
	}
	if again.IsEndedUp() {
		t.Errorf("%s is that of a server that runs", again.URLs())
	}
	if err := first.isStillUp(); err != nil {
		t.Errorf("a connection to the one that runs is refused: %v", err)
	}
	next.Shutdown()
	if first.isStillUp() == nil {
		t.Error("a connection to another server at that address is permitted")
	}
	if again, err = (NATSFlags{}).Resolve(); err != nil || !again.IsEndedUp() {
		t.Errorf("%s, %v, is not that of a server that has ended", again.URLs(), err)
	}
	other := strings.Replace(first.URLs(), "extmesh:", "ada:", 1)
	t.Setenv("NATS_URL", other)
	if again, err = (NATSFlags{}).Resolve(); err != nil || again.URLs() != other {
		t.Errorf("%s, %v; want %s", again.URLs(), err, other)
	}
}

// TestPasswordInContextChanged: a connection whose context has got another password uses it when it reconnects.
func TestPasswordInContextChanged(t *testing.T) {
	emptyHome(t)
	path := filepath.Join(t.TempDir(), "registry.json")
	srv := natstest.Start(t, &server.Options{Port: -1, Username: "registry", Password: "first"})
	write := func(password string) {
		context := fmt.Sprintf(`{"url":%q,"user":"registry","password":%q}`, "nats://"+srv.Addr().String(), password)
		if err := os.WriteFile(path, []byte(context), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	target, err := NATSFlags{Context: path}.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	reconnected := make(chan struct{}, 1)
	nc, err := target.Connect(t.Context(), ConnectOptions{Wait: true, Extra: []nats.Option{nats.ReconnectHandler(func(*nats.Conn) { reconnected <- struct{}{} })}})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	write("second")
	srv.Restart(func(o *server.Options) { o.Password = "second" })
	<-reconnected // or the test times out
}

// TestTokenInContextChanged: the same for a token; another user is not taken over, because its inbox is another one.
func TestTokenInContextChanged(t *testing.T) {
	emptyHome(t)
	path := filepath.Join(t.TempDir(), "registry.json")
	srv := natstest.Start(t, &server.Options{Port: -1, Authorization: "first"})
	write := func(credentials string) {
		if err := os.WriteFile(path, fmt.Appendf(nil, `{"url":%q,%s}`, "nats://"+srv.Addr().String(), credentials), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`"token":"first"`)
	target, err := NATSFlags{Context: path}.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	reconnected := make(chan struct{}, 1)
	nc, err := target.Connect(t.Context(), ConnectOptions{Wait: true, Extra: []nats.Option{nats.ReconnectHandler(func(*nats.Conn) { reconnected <- struct{}{} })}})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	write(`"token":"second"`)
	srv.Restart(func(o *server.Options) { o.Authorization = "second" })
	<-reconnected // or the test times out

	write(`"user":"bob","password":"second"`)
	for user, want := range map[string]string{"bob": "second", "ada": "first"} {
		if got, password := contextUser(path, user, "first")(); got != user || password != want {
			t.Errorf("%s: %s with the password %s", user, got, password)
		}
	}
}

// TestInboxPrefix checks names that become parts of subjects, from the flag and from a context.
func TestInboxPrefix(t *testing.T) {
	dir := emptyHome(t)
	for prefix, ok := range map[string]bool{
		"_INBOX": true, "_INBOX.agent": true, "_INBOX.bridge-0": true, "inbox": true,
		"_INBOX.*": false, "_INBOX.>": false, "_INBOX.a b": false, "_INBOX.": false, ".agent": false, "_INBOX..a": false,
		"_INBOX.a*": false, "_INBOX.a\tb": false, "_INBOX.\u00a0": false, "$SYS.x": false, "ext": false, "ext.me": false, "external": true,
	} {
		if _, err := (NATSFlags{Server: "nats://h:1", InboxPrefix: prefix, Prefix: "ext"}).Resolve(); (err == nil) != ok {
			t.Errorf("--inbox-prefix %q: %v", prefix, err)
		}
		text, err := json.Marshal(map[string]string{"url": "nats://h:1", "inbox_prefix": prefix})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "context.json")
		writeFile(t, file, string(text))
		got, err := NATSFlags{Context: file, Prefix: "ext"}.Resolve()
		if (err == nil) != ok {
			t.Errorf("a context with the inbox prefix %q: %v", prefix, err)
		}
		if ok && got.base.InboxPrefix != prefix {
			t.Errorf("a context with the inbox prefix %q has %q", prefix, got.base.InboxPrefix)
		}
	}
}
