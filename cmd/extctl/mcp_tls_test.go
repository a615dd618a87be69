package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/natstest"
)

// writeCertificate writes a self-signed certificate for 127.0.0.1, whose files have changed at the time changed.
func writeCertificate(t *testing.T, dir string, serial int64, changed time.Time) (cert []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"localhost"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, text := range map[string][]byte{"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), "tls.crt": cert} {
		path := filepath.Join(dir, name)
		err := os.WriteFile(path, text, 0o600)
		if err == nil {
			err = os.Chtimes(path, changed, changed)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return cert
}

// mcpModern makes a request of the protocol 2026-07-28.
func mcpModern(ctx context.Context, t *testing.T, url, method, params string) *http.Request {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	r, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "*/*", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method} {
		r.Header.Set(k, v)
	}
	return r
}

// serialOf sends a request over HTTP/2 and returns the serial number of the server's certificate.
func serialOf(t *testing.T, c *http.Client, url string) int64 {
	t.Helper()
	res, err := c.Do(mcpModern(t.Context(), t, url, "server/discover", ""))
	if err != nil {
		t.Error(err)
		return 0
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.ProtoMajor != 2 || !strings.Contains(string(text), `"result"`) {
		t.Errorf("%s %s, %v", res.Proto, text, err)
	}
	return res.TLS.PeerCertificates[0].SerialNumber.Int64()
}

// TestMCPOverTLS uses HTTP/2, with a stream and requests on one connection, and renews the certificate meanwhile.
func TestMCPOverTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	began := time.Now()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(writeCertificate(t, dir, 1, began))
	m := startMCP(t, "--server", "nats://127.0.0.1:1", "--log-level", "error", "--http", "127.0.0.1:0",
		"--http-cert", filepath.Join(dir, "tls.crt"), "--http-key", filepath.Join(dir, "tls.key"))
	url := strings.TrimSpace(m.next())
	if !strings.HasPrefix(url, "https://127.0.0.1:") {
		t.Fatalf("the URL is %s", url)
	}
	transport := func() *http.Transport {
		tr := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"}}
		t.Cleanup(tr.CloseIdleConnections)
		return tr
	}
	client := &http.Client{Transport: transport()}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := client.Do(mcpModern(ctx, t, url, "subscriptions/listen", `"notifications":{"toolsListChanged":true},`))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	if _, err := io.ReadAtLeast(stream.Body, make([]byte, 1000), 10); err != nil || stream.ProtoMajor != 2 {
		t.Fatalf("the stream: %s, %v", stream.Proto, err)
	}
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() { serialOf(t, client, url) })
	}
	all.Wait()

	roots.AppendCertsFromPEM(writeCertificate(t, dir, 2, began.Add(time.Second)))
	if n := serialOf(t, &http.Client{Transport: transport()}, url); n != 2 {
		t.Errorf("after the renewal, a new connection has certificate %d", n)
	}
	if n := serialOf(t, client, url); n != 1 {
		t.Errorf("the open connection has certificate %d", n)
	}
	if err := os.WriteFile(filepath.Join(dir, "tls.crt"), []byte("half a cert"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := serialOf(t, &http.Client{Transport: transport()}, url); n != 2 {
		t.Errorf("with a file that is half written, a new connection has certificate %d", n)
	}
}

// TestUpMCP starts extctl up with an MCP server, and calls a tool through it.
func TestUpMCP(t *testing.T) {
	t.Parallel()
	u := startUp(t, extensionDir(t, map[string]string{"echo": shellExtension}), "--listen", "0", "--data", t.TempDir(), "--log-level", "error", "--mcp", "127.0.0.1:0")
	u.await(t, "Ctrl-C stops everything.")
	url := between(u.out.String(), "MCP clients connect to ", "\n")
	answer := func(method, params string) string {
		r := mcpModern(t.Context(), t, url, method, params)
		if method == "tools/call" {
			r.Header.Set("Mcp-Name", "ext_echo_say")
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	natstest.Eventually(t, "the MCP server has read the tool from the catalog", func() bool {
		return strings.Contains(answer("tools/list", ""), `"name":"ext_echo_say"`)
	})
	if text := answer("tools/call", `"name":"ext_echo_say","arguments":{"what":"hello"},`); !strings.Contains(text, "said") {
		t.Errorf("tools/call: %s", text)
	}
	code, _, stderr := extctl(t.Context(), "nats://127.0.0.1:1", "up", t.TempDir(), "--mcp", "unix:"+filepath.Join(t.TempDir(), "s"), "--mcp-tokens", "no-such-file")
	if code != exitUsage || !strings.Contains(stderr, "--mcp-tokens: ") {
		t.Errorf("tokens that are missing: exit code %d, %s", code, stderr)
	}
	code, _, stderr = extctl(t.Context(), "nats://127.0.0.1:1", "up", t.TempDir(), "--mcp-tokens", "no-such-file")
	if code != exitUsage || !strings.Contains(stderr, "--mcp-tokens needs --mcp") {
		t.Errorf("tokens without a server: exit code %d, %s", code, stderr)
	}
	code, _, stderr = extctl(t.Context(), "nats://127.0.0.1:1", "up", t.TempDir(), "--mcp", "0.0.0.0:7331")
	if code != exitUsage || !strings.Contains(stderr, "want an address of this machine") {
		t.Errorf("with an address for others: exit %d, %s", code, stderr)
	}
}

// TestUpMCPTokens: extctl up refuses clients without a token, and credentials that its NATS server does not have.
func TestUpMCPTokens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sum := sha256.Sum256([]byte("secret"))
	for name, text := range map[string]string{
		"tokens.yaml": "tokens:\n  ada: {sha256: " + hex.EncodeToString(sum[:]) + ", context: ada.json}\n",
		"ada.json":    `{"user":"ada","password":"x"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u := startUp(t, extensionDir(t, map[string]string{"echo": shellExtension}), "--listen", "0", "--data", t.TempDir(), "--log-level", "error",
		"--mcp", "127.0.0.1:0", "--mcp-tokens", filepath.Join(dir, "tokens.yaml"))
	u.await(t, "Ctrl-C stops everything.")
	url := between(u.out.String(), "MCP clients connect to ", "\n")
	for token, want := range map[string]string{"": "a bearer token is required", "secret": "not reachable with the credentials of this client"} {
		natstest.Eventually(t, want, func() bool {
			r := mcpModern(t.Context(), t, url, "tools/call", `"name":"ext_echo_say","arguments":{"what":"hello"},`)
			r.Header.Set("Mcp-Name", "ext_echo_say")
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			return err == nil && strings.Contains(string(text), want)
		})
	}
}

// TestUpMCPDrain: a call in flight when extctl up stops does not lose its connection to the mesh.
func TestUpMCPDrain(t *testing.T) {
	t.Parallel()
	files := t.TempDir()
	called, goOn := filepath.Join(files, "called"), filepath.Join(files, "go-on")
	held := strings.Replace(shellExtension, `*) r='"said"' ;;`, `*tools/say*) touch `+called+`; while [ ! -e `+goOn+` ]; do sleep 0.01; done; r='"said"' ;; *) r={} ;;`, 1)
	u := startUp(t, extensionDir(t, map[string]string{"echo": held}), "--listen", "0", "--data", t.TempDir(), "--log-level", "error", "--mcp", "127.0.0.1:0")
	u.await(t, "Ctrl-C stops everything.")
	url := between(u.out.String(), "MCP clients connect to ", "\n")
	answer := make(chan string, 1)
	r := mcpModern(t.Context(), t, url, "tools/call", `"name":"ext_echo_say","arguments":{"what":"hello"},`)
	r.Header.Set("Mcp-Name", "ext_echo_say")
	go func() { // ends with the answer
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		answer <- string(text)
	}()
	natstest.Eventually(t, "the extension has the call", func() bool { _, err := os.Stat(called); return err == nil })
	u.cancel()
	if err := os.WriteFile(goOn, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if text := <-answer; !strings.Contains(text, `"result"`) || strings.Contains(text, "tool mesh") { // a slow machine may stop the extension first
		t.Errorf("the call in flight ends with %s", text)
	}
}
