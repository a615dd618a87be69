package deploy_test

import (
	"bufio"
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
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func sha256Of(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// tokens writes a file for --tokens with one token.
func tokens(t *testing.T, token string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(path, []byte("tokens:\n  t: {sha256: "+sha256Of(token)+"}\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	return path
}

// mcpRequest makes a request of the protocol 2026-07-28, which has no sessions.
func mcpRequest(ctx context.Context, t *testing.T, url, token, method, params string) *http.Request {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	r, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28",
		"Mcp-Method": method, "Authorization": "Bearer " + token,
	} {
		r.Header.Set(k, v)
	}
	return r
}

func send(c *http.Client, r *http.Request) (status int, body string) {
	res, err := c.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(text)
}

// awaitMCP waits until an MCP server lists the tools of hello and primes, and checks that it refuses another token.
func awaitMCP(t *testing.T, c *http.Client, url, token string) {
	t.Helper()
	await(t, url+" lists the tools", func() (bool, string) {
		_, body := send(c, mcpRequest(t.Context(), t, url, token, "tools/list", ""))
		return strings.Contains(body, `"ext_hello_greet"`) && strings.Contains(body, `"ext_primes_factor"`), body
	})
	if status, body := send(c, mcpRequest(t.Context(), t, url, token+"x", "tools/list", "")); status != http.StatusUnauthorized {
		t.Errorf("%s with a wrong token: %d %s", url, status, body)
	}
}

// await waits until done is true; it fails with the last text of done.
func await(t *testing.T, what string, done func() (bool, string)) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Minute); ; <-tick.C {
		ok, text := done()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still waiting: %s: %s", what, text)
		}
	}
}

// TestProxies runs nginx and Caddy with the files in deploy, each in front of the MCP server of the systemd unit. Requests
// and their headers must pass unchanged, events must arrive while their stream is open, and the server must notice that a
// client has closed a stream.
func TestProxies(t *testing.T) {
	const host = "mcp.example.com"
	cert, key, roots := certificate(t, host)
	for name, start := range map[string]func(t *testing.T, door, at string) process{
		"nginx": func(t *testing.T, door, at string) process {
			dir := t.TempDir()
			site := strings.NewReplacer("127.0.0.1:7331", door, "listen 443", "listen "+at, "/etc/extmesh/tls.crt", cert, "/etc/extmesh/tls.key", key)
			text := "user root;\npid nginx.pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\nclient_body_temp_path body;\nproxy_temp_path proxy;\n" +
				"fastcgi_temp_path f;\nuwsgi_temp_path u;\nscgi_temp_path s;\n" + site.Replace(read(t, "deploy/nginx/mcp.conf")) + "}\n"
			writeFile(t, filepath.Join(dir, "nginx.conf"), text)
			return process{args: []string{"-p", dir, "-e", "stderr", "-c", "nginx.conf", "-g", "daemon off;"}}
		},
		"caddy": func(t *testing.T, door, at string) process {
			_, port, _ := net.SplitHostPort(at)
			site := strings.NewReplacer("127.0.0.1:7331", door, host+" {", host+":"+port+" {\n\tbind 127.0.0.1\n\ttls "+cert+" "+key)
			file := filepath.Join(t.TempDir(), "Caddyfile")
			writeFile(t, file, "{\n\tadmin off\n\tgrace_period 1s\n\tauto_https disable_redirects\n}\n"+site.Replace(read(t, "deploy/caddy/Caddyfile")))
			return process{args: []string{"run", "--adapter", "caddyfile", "--config", file}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Skipf("no %s here", name)
			}
			door, admin, at := "127.0.0.1:"+port(t), "127.0.0.1:"+port(t), "127.0.0.1:"+port(t)
			run(t, mcpUnit(t, door, admin))
			p := start(t, door, at)
			p.name, p.program = name, path
			run(t, p)
			transport := &http.Transport{
				TLSClientConfig: &tls.Config{RootCAs: roots},
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "tcp", at)
				},
			}
			t.Cleanup(transport.CloseIdleConnections)
			c := &http.Client{Transport: transport}
			checkProxy(t, c, "https://"+host+"/mcp")
			checkDisconnect(t, c, "https://"+host+"/mcp", admin)
		})
	}
}

// mcpUnit is the process of mcp.service, without a mesh, and with the token ada.
func mcpUnit(t *testing.T, door, admin string) process {
	t.Helper()
	start := service(t, "mcp")["Service.ExecStart"][0]
	context := filepath.Join(t.TempDir(), "nats.json")
	writeFile(t, context, `{"url": "nats://127.0.0.1:1"}`)
	words := strings.Fields(strings.NewReplacer("127.0.0.1:7331", door, "127.0.0.1:8225", admin,
		"/etc/extmesh/tokens.yaml", tokens(t, "ada"), "${CREDENTIALS_DIRECTORY}/nats.json", context).Replace(start))
	return process{name: "mcp", program: "extctl", args: words[1:]}
}

func checkProxy(t *testing.T, c *http.Client, url string) {
	await(t, "the server behind the proxy", func() (bool, string) {
		status, body := send(c, mcpRequest(t.Context(), t, url, "ada", "server/discover", ""))
		return status == 200, body
	})
	if status, body := send(c, mcpRequest(t.Context(), t, url, "bob", "server/discover", "")); status != 401 {
		t.Errorf("with a wrong token: %d %s", status, body)
	}
	foreign := mcpRequest(t.Context(), t, url, "ada", "server/discover", "")
	foreign.Header.Set("Origin", "https://evil.example")
	if status, body := send(c, foreign); status != 403 || !strings.Contains(body, "--allow-origin") {
		t.Errorf("with a foreign Origin: %d %s", status, body)
	}
	large := strings.Repeat("x", 4<<20+1)
	if status, body := send(c, mcpRequest(t.Context(), t, url, "ada", "server/discover", `"a":"`+large+`",`)); status != 413 || !strings.Contains(body, `"id":1`) {
		t.Errorf("a body that is too large: %d %s", status, body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := c.Do(mcpRequest(ctx, t, url, "ada", "subscriptions/listen", `"notifications":{"toolsListChanged":true},`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: ") {
			return
		}
		if strings.HasPrefix(lines.Text(), ":") { // sent after 15 s to keep the stream open
			break
		}
	}
	t.Errorf("no event arrives while the stream is open: %s", res.Status)
}

// checkDisconnect closes a stream. The server must notice it before it has sent two comments into the stream, 15 s apart: a
// proxy that goes on reading is noticed only when it fails to pass them on.
func checkDisconnect(t *testing.T, c *http.Client, url, admin string) {
	streams := func(n string) func() (bool, string) {
		return func() (bool, string) {
			r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+admin+"/metrics", nil)
			if err != nil {
				t.Fatal(err)
			}
			_, text := send(http.DefaultClient, r)
			return strings.Contains(text, "\nextmesh_mcp_streams "+n+"\n"), text
		}
	}
	await(t, "the stream of checkProxy has ended", streams("0"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res, err := c.Do(mcpRequest(ctx, t, url, "ada", "subscriptions/listen", `"notifications":{"toolsListChanged":true},`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	await(t, "a stream", streams("1"))
	cancel()
	began := time.Now()
	await(t, "the stream has ended", streams("0"))
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("the server noticed that the client had gone after %v", took)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// certificate makes a self-signed certificate.
func certificate(t *testing.T, host string) (cert, key string, roots *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	writeFile(t, cert, string(text))
	writeFile(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return cert, key, roots
}
