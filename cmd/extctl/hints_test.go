package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/freeport"
	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/internal/registry"
)

// hintOf is the hint in what a command printed on stderr.
func hintOf(stderr string) string {
	_, hint, _ := strings.Cut(stderr, "extctl: hint: ")
	return strings.TrimSpace(hint)
}

// rolesBed is a mesh on a server with the roles of deploy/nats/roles.conf, and a user for the test.
func rolesBed(t *testing.T) *bed {
	t.Helper()
	text, err := os.ReadFile("../../deploy/nats/roles.conf")
	if err != nil {
		t.Fatal(err)
	}
	conf := strings.Replace(string(text), "users = [", `users = [ { user: "bed", password: "secret" }`, 1)
	for _, role := range []string{"REGISTRY", "BRIDGE_0", "BRIDGE_1", "PRIMES", "OPERATOR", "AGENT", "SYS", "MCP"} {
		conf = strings.ReplaceAll(conf, "$"+role+"_PASSWORD", "secret")
	}
	file := filepath.Join(t.TempDir(), "roles.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b, stop, err := newBedWith(t.TempDir(), o, nats.UserInfo("bed", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return b
}

// TestForgottenInboxPrefix: a user of the shipped roles who forgets --inbox-prefix gets an error at once, and the hint has
// the flag with its value. With it, the command works.
func TestForgottenInboxPrefix(t *testing.T) {
	t.Parallel()
	b := rolesBed(t)
	b.putExtension(t, "weather", "b1")
	if _, err := b.kv.PutString(t.Context(), "spec.weather", `{"id":"weather","version":"1.0.0","tools":[{"name":"ext_weather_echo","tool":"echo"}]}`); err != nil {
		t.Fatal(err)
	}
	if err := b.fakeExtension("weather"); err != nil {
		t.Fatal(err)
	}
	if err := b.fakeBridge("b1"); err != nil {
		t.Fatal(err)
	}
	as := func(user string) string { return strings.Replace(b.url, "nats://", "nats://"+user+":secret@", 1) }
	for _, line := range []string{"status", "list", "tools", "show weather", "ping weather", "logs weather", "logs -f weather", "call ext_weather_echo", "watch", "wait weather", "show registry"} {
		began := time.Now()
		code, stdout, stderr := extctl(t.Context(), as("operator"), append(strings.Fields(line), "--timeout", "2m")...)
		if code != exitDenied || !strings.Contains(stderr, "error: NATS does not allow the user operator to receive replies on _INBOX.>\n") {
			t.Errorf("%s: exit code %d, %s%s", line, code, stdout, stderr)
		}
		if hint := hintOf(stderr); !strings.Contains(hint, "add --inbox-prefix _INBOX.operator,") {
			t.Errorf("%s: hint %q", line, hint)
		}
		if took := time.Since(began); took > time.Minute { // not the time limit of the command
			t.Fatalf("%s took %s", line, took)
		}
	}
	for _, line := range []string{"list", "show weather", "ping weather", "logs weather", "call ext_weather_echo"} {
		if code, stdout, stderr := extctl(t.Context(), as("operator"), append(strings.Fields(line), "--inbox-prefix", "_INBOX.operator")...); code != exitOK {
			t.Errorf("%s with the hint: exit code %d, %s%s", line, code, stdout, stderr)
		}
	}
	code, stdout, _ := extctl(t.Context(), as("agent"), "list", "--json")
	if out := decodeOutput(t, stdout); code != exitDenied || out.Error == nil || out.Error.Kind != "denied" || !strings.Contains(out.Error.Hint, "_INBOX.agent") {
		t.Errorf("--json: exit code %d, %s", code, stdout)
	}
	// A prefix that is another user's.
	if code, _, stderr := extctl(t.Context(), as("agent"), "list", "--inbox-prefix", "_INBOX.operator"); code != exitDenied || !strings.Contains(hintOf(stderr), "--inbox-prefix _INBOX.agent,") {
		t.Errorf("another user's prefix: exit code %d, %s", code, stderr)
	}
}

// TestUnknownInboxPrefix: the server may have another prefix for a user than the usual one.
func TestUnknownInboxPrefix(t *testing.T) {
	t.Parallel()
	b, _ := bedWithUsers(t, server.User{Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Allow: []string{"private.>"}}}})
	code, _, stderr := extctl(t.Context(), b.url, "list", "--timeout", "2m")
	if code != exitDenied || !strings.Contains(hintOf(stderr), "add --inbox-prefix _INBOX.op, or what the server's configuration has") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if code, _, stderr := extctl(t.Context(), b.url, "list", "--inbox-prefix", "private"); code != exitOK {
		t.Errorf("with the prefix: exit code %d, %s", code, stderr)
	}
}

// TestDeniedOnManyBridges: what NATS denies for each of forty bridges is one line.
func TestDeniedOnManyBridges(t *testing.T) {
	t.Parallel()
	b, _ := bedWithUsers(t, server.User{Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"ext.control.>"}}}})
	var bridges []string
	for i := range 40 {
		bridges = append(bridges, "b"+string(rune('a'+i/26))+string(rune('a'+i%26)))
	}
	b.putExtension(t, "x", bridges...)
	code, _, stderr := extctl(t.Context(), b.url, "logs", "x", "--timeout", "2m")
	line, hint, _ := strings.Cut(stderr, "\n")
	if code != exitDenied || !strings.Contains(line, `Publish to "ext.control.baa"`) || !strings.HasSuffix(line, "; requests to bab, bac, bad and 36 more failed, too") || strings.Count(hint, "\n") != 1 {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	b.putExtension(t, "y", "gone1", "gone2", "gone3")
	if code, _, stderr := extctl(t.Context(), b.url, "drain", "y", "--yes"); code != exitDenied || strings.Count(stderr, "\n") != 2 {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// selfSigned makes a self-signed certificate for a name.
func selfSigned(t *testing.T, name string, until time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: until, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	if ip := net.ParseIP(name); ip != nil {
		c.DNSNames, c.IPAddresses = nil, []net.IP{ip}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// caFile writes a certificate as an authority for --tlsca.
func caFile(t *testing.T, c tls.Certificate) string {
	t.Helper()
	return tempFile(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})))
}

func tempFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// keyServer starts a server that expects keys of its clients.
func keyServer(t *testing.T) string {
	t.Helper()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true, AuthTimeout: 60, AlwaysEnableNonce: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	return srv.ClientURL()
}

// serverURL starts a server with options and returns its address.
func serverURL(t *testing.T, o *server.Options) string {
	t.Helper()
	b, stop, err := newBedWith(t.TempDir(), o, nats.Secure(&tls.Config{InsecureSkipVerify: true}), func(n *nats.Options) error { //nolint:gosec // the test's own server
		if o.TLSConfig == nil {
			n.Secure, n.TLSConfig = false, nil
		}
		n.User, n.Password = o.Username, o.Password
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return b.url
}

// TestConnectHints: each cause of a failed connection has its own hint.
func TestConnectHints(t *testing.T) {
	t.Parallel()
	plain := serverURL(t, &server.Options{})
	password := serverURL(t, &server.Options{Username: "ada", Password: "secret"})
	keys := keyServer(t)
	own, other, old := selfSigned(t, "127.0.0.1", time.Now().Add(time.Hour)), selfSigned(t, "nats.example", time.Now().Add(time.Hour)), selfSigned(t, "127.0.0.1", time.Now().Add(-time.Hour))
	secure := func(c tls.Certificate) string {
		return serverURL(t, &server.Options{TLSConfig: &tls.Config{Certificates: []tls.Certificate{c}}, TLSTimeout: 10})
	}
	first := func(limit float64) string {
		return natstest.Start(t, &server.Options{Port: -1, TLSConfig: &tls.Config{Certificates: []tls.Certificate{own}}, TLSHandshakeFirst: true, TLSTimeout: limit}).ClientURL()
	}
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	greeting, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { greeting.Close() })
	go func() { // ends when the listener is closed
		for {
			c, err := greeting.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n")
			c.Close()
		}
	}()
	url, ownCA := secure(own), caFile(t, own)
	with := func(url, user string) string { return strings.Replace(url, "://", "://"+user+"@", 1) }
	for _, tt := range []struct {
		what, line, text, hint string
		code                   int
	}{
		{"nobody listens", "--server nats://127.0.0.1:1", "cannot connect to NATS at nats://127.0.0.1:1", "start one with `extctl up`", 13},
		{"no such host", "--server nats://no-such-host.invalid", "no-such-host.invalid", "the host's name cannot be resolved", 13},
		{"no such port", "--server nats://127.0.0.1:99999", "invalid port", "a port is a number from 1 to 65535", 13},
		{"an HTTP server", "--timeout 300ms --server " + strings.Replace(web.URL, "http://", "nats://", 1), "timeout", "nothing answered in time: check the address", 13},
		{"an SSH server", "--server nats://" + greeting.Addr().String(), "INFO not received", "what listens there is not NATS", 13},
		{"no password", "--server " + password, "requires credentials", "--creds, --nkey, or --tlscert", 14},
		{"wrong password", "--server " + with(password, "ada:wrong"), "refused the user ada", "the name or the password is wrong", 14},
		{"a credentials file without credentials", "--creds " + tempFile(t, "junk") + " --server " + keys, "", "the credentials file must contain", 13},
		{"no TLS", "--server " + strings.Replace(plain, "nats://", "tls://", 1), "secure connection not available", "write nats:// instead of tls://", 13},
		{"an unknown authority", "--server " + url, "unknown authority", "--tlsca FILE", 13},
		{"the right authority", "--server " + url + " --tlsca " + ownCA, "", "", 0},
		{"TLS first", "--server " + strings.Replace(first(0.1), "nats://", "tls://", 1) + " --tlsca " + ownCA, "EOF", `a context of the nats command with "tls_first": true`, 13},
		{"another name", "--server " + secure(other) + " --tlsca " + caFile(t, other), "certificate", "the server's certificate is for other names", 13},
		{"an expired certificate", "--server " + secure(old) + " --tlsca " + caFile(t, old), "expired", "has it expired", 13},
	} {
		code, _, stderr := extctl(t.Context(), plain, append([]string{"list"}, strings.Fields(tt.line)...)...)
		if code != tt.code || !strings.Contains(stderr, tt.text) || !strings.Contains(hintOf(stderr), tt.hint) {
			t.Errorf("%s: exit code %d, want %d with %q and %q:\n%s", tt.what, code, tt.code, tt.text, tt.hint, stderr)
		}
	}
	withContext := tempFile(t, fmt.Sprintf(`{"url": %q, "ca": %q, "tls_first": true}`, first(10), ownCA))
	var stdout, stderr bytes.Buffer
	run(t.Context(), []string{"list", "--context", withContext}, nil, &stdout, &stderr, func(string) string { return "" })
	if !strings.Contains(stderr.String(), "no registry runs on this mesh") {
		t.Errorf("TLS first, with the context of the hint: %s", stderr.String())
	}
}

// runRegistry runs a registry on a server until the test ends.
func runRegistry(t *testing.T, url, name string) {
	t.Helper()
	nc, err := nats.Connect(url, nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- registry.Run(ctx, nc, registry.Config{Name: name, Version: "0.1.0"}) }() // ends with cancel
	t.Cleanup(func() { cancel(); <-done })
}

// TestNoCatalogOnLeaf: on a leaf node the registry of the hub answers, but its catalog cannot be read. Starting another registry
// would be wrong.
func TestNoCatalogOnLeaf(t *testing.T) {
	t.Parallel()
	port := freeport.Port(t)
	address := &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)}
	hub := natstest.Start(t, &server.Options{ServerName: "hub", Port: -1, JetStream: true, JetStreamDomain: "hub",
		LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: port}})
	runRegistry(t, hub.ClientURL(), "hub-0")
	leaf := natstest.Start(t, &server.Options{ServerName: "leaf", Port: -1, JetStream: true, JetStreamDomain: "leaf",
		LeafNode: server.LeafNodeOpts{Remotes: []*server.RemoteLeafOpts{{URLs: []*url.URL{address}}}}})
	var stderr string
	natstest.Eventually(t, "the registry has a catalog, and answers on the leaf", func() bool {
		_, _, stderr = extctl(t.Context(), leaf.ClientURL(), "hosts")
		return strings.Contains(stderr, "the registry hub-0 0.1.0 has a catalog")
	})
	if !strings.Contains(stderr, "this server is a leaf node, or this is another account") || !strings.Contains(hintOf(stderr), "docs/operations.md, Leaf nodes") {
		t.Error(stderr)
	}
	if _, stdout, stderr := extctl(t.Context(), leaf.ClientURL(), "status"); !strings.Contains(stdout+stderr, "Leaf nodes") || strings.Contains(stdout+stderr, "start a registry") {
		t.Errorf("%s%s", stdout, stderr)
	}
}

// TestJetStreamHints: an account without JetStream, and one whose limits do not allow the stream, have hints of their own.
func TestJetStreamHints(t *testing.T) {
	t.Parallel()
	user := &server.User{Username: "ada", Password: "none", Account: server.NewAccount("A")}
	none := natstest.Start(t, &server.Options{Port: -1, JetStream: true, Accounts: []*server.Account{user.Account}, Users: []*server.User{user}, NoAuthUser: "ada"})
	limited := natstest.Start(t, &server.Options{Port: -1, JetStream: true})
	taken := natstest.Start(t, &server.Options{Port: -1, JetStream: true})
	if _, err := natstest.JetStream(t, taken.Connect()).CreateStream(t.Context(), jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{"$KV.>"}}); err != nil {
		t.Fatal(err)
	}
	if err := limited.GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": {
		MaxMemory: -1, MaxStore: 1 << 30, MaxStreams: -1, MaxConsumers: -1, MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1, MaxBytesRequired: true,
	}}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		srv        *natstest.Server
		text, hint string
	}{
		{taken, "it cannot use JetStream: ", "check the NATS servers"},
		{none, "its account has no JetStream", "enable JetStream for this account"},
		{limited, "the limits of its account do not allow the stream of the catalog", "nats stream add KV_ext_catalog --subjects '$KV.ext_catalog.>' "},
	} {
		runRegistry(t, tt.srv.ClientURL(), "")
		var stderr string
		natstest.Eventually(t, tt.text, func() bool {
			_, _, stderr = extctl(t.Context(), tt.srv.ClientURL(), "list")
			return strings.Contains(stderr, tt.text)
		})
		if hint := hintOf(stderr); !strings.Contains(hint, tt.hint) || strings.Contains(hint, "-js") {
			t.Error(stderr)
		}
	}
}

// TestNoCatalogHints: if there is no catalog, the registry is asked why, and commands that wait for one print that at once.
func TestNoCatalogHints(t *testing.T) {
	t.Parallel()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true}) // no JetStream
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	if code, _, stderr := extctl(t.Context(), srv.ClientURL(), "list"); code != exitNoNATS || !strings.Contains(stderr, "no registry runs on this mesh") || !strings.Contains(hintOf(stderr), "registry --server") {
		t.Errorf("without a registry: exit code %d, %s", code, stderr)
	}
	for _, args := range [][]string{{"forget", "x"}, {"bench", "ext_x_y"}} { // they follow the catalog
		if code, _, stderr := extctl(t.Context(), srv.ClientURL(), args...); code != exitNoNATS || !strings.Contains(stderr, "no registry runs on this mesh") {
			t.Errorf("%s without a registry: exit code %d, %s", args[0], code, stderr)
		}
	}
	runRegistry(t, srv.ClientURL(), "")
	var code int
	var stdout, stderr string
	natstest.Eventually(t, "the registry runs and has tried to use JetStream", func() bool {
		code, _, stderr = extctl(t.Context(), srv.ClientURL(), "list")
		return strings.Contains(stderr, "JetStream is not available")
	})
	if code != exitNoNATS || !strings.Contains(stderr, "JetStream is not available on this server") || !strings.Contains(hintOf(stderr), "nats-server -js") {
		t.Errorf("without JetStream: exit code %d, %s", code, stderr)
	}
	code, stdout, stderr = extctl(t.Context(), srv.ClientURL(), "status")
	if code != exitNoNATS || !strings.HasPrefix(stdout, "Mesh:        ext on nats://") || !strings.Contains(hintOf(stderr), "nats-server -js") {
		t.Errorf("status without JetStream: exit code %d, %s%s", code, stdout, stderr)
	}
	for _, line := range []string{"watch", "wait hello"} {
		u := &upRun{done: make(chan int, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { // ends with cancel
			u.done <- run(ctx, append(strings.Fields(line), "--server", srv.ClientURL()), nil, &u.out, &u.err, func(string) string { return "" })
		}()
		u.await(t, "waiting for a catalog: a registry runs")
		cancel()
		if code := <-u.done; code != exitInterrupted {
			t.Errorf("%s: exit code %d, %s", line, code, u.err.String())
		}
		code, _, stderr := extctl(t.Context(), srv.ClientURL(), append(strings.Fields(line), "--timeout", "10s")...)
		if code != exitTimeout || strings.Contains(stderr, "deadline exceeded") || !strings.Contains(stderr, "within") {
			t.Errorf("%s: exit code %d, %s", line, code, stderr)
		}
	}
}
