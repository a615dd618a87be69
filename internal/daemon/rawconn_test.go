//go:build linux && !race

package daemon

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// TestRawConn holds connections with raw system calls to what ordinary ones do.
func TestRawConn(t *testing.T) {
	large := bytes.Repeat([]byte("all that fits into no buffer"), 1<<20)
	for _, tt := range []struct {
		name string
		test func(t *testing.T, c, peer net.Conn)
	}{
		{"large, both ways at once", func(t *testing.T, c, peer net.Conn) {
			go io.Copy(peer, peer) // ends with the connection
			wrote := make(chan error, 1)
			go func() { _, err := c.Write(large); wrote <- err }() // ends below
			got := make([]byte, len(large))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, large) {
				t.Errorf("read: %v; the same: %v", err, bytes.Equal(got, large))
			}
			if err := <-wrote; err != nil {
				t.Error(err)
			}
		}},
		{"two writers", func(t *testing.T, c, peer net.Conn) {
			for _, b := range []string{"a", "b"} {
				go c.Write(bytes.Repeat([]byte(b), 1<<20)) // ends below
			}
			got := make([]byte, 2<<20)
			if _, err := io.ReadFull(peer, got); err != nil {
				t.Error(err)
			}
			if s := strings.Trim(string(got), string(got[:1])); strings.Trim(s, s[:1]) != "" {
				t.Error("they are mixed")
			}
		}},
		{"nothing", func(t *testing.T, c, peer net.Conn) {
			if n, err := c.Read(nil); n != 0 || err != nil {
				t.Errorf("read: %d, %v", n, err)
			}
			if n, err := c.Write(nil); n != 0 || err != nil {
				t.Errorf("write: %d, %v", n, err)
			}
		}},
		{"the end", func(t *testing.T, c, peer net.Conn) {
			peer.Close()
			if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("%d, %v", n, err)
			}
		}},
		{"a deadline for reading", func(t *testing.T, c, peer net.Conn) {
			c.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err := c.Read(make([]byte, 1))
			late(t, "read", err)
			c.SetReadDeadline(time.Time{})
			peer.Write([]byte("x"))
			if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
				t.Errorf("after that: %d, %v", n, err)
			}
		}},
		{"a deadline for writing", func(t *testing.T, c, peer net.Conn) {
			c.SetWriteDeadline(time.Now().Add(time.Millisecond))
			n, err := c.Write(large)
			late(t, "write", err)
			if n == 0 || n == len(large) {
				t.Errorf("%d of %d bytes are written", n, len(large))
			}
			peer.(*net.TCPConn).CloseWrite()
			got := make([]byte, n)
			if _, err := io.ReadFull(peer, got); err != nil || !bytes.Equal(got, large[:n]) {
				t.Errorf("the peer has read something else, or %v", err)
			}
		}},
		{"closed while it reads", func(t *testing.T, c, peer net.Conn) {
			read := make(chan error, 1)
			go func() { _, err := c.Read(make([]byte, 1)); read <- err }() // ends below
			c.Close()
			if err := <-read; !errors.Is(err, net.ErrClosed) || !strings.HasPrefix(err.Error(), "read tcp 127.0.0.1:") {
				t.Errorf("read: %v", err)
			}
			if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) || !strings.HasPrefix(err.Error(), "write tcp 127.0.0.1:") {
				t.Errorf("write: %v", err)
			}
		}},
		{"a peer that has gone", func(t *testing.T, c, peer net.Conn) {
			peer.(*net.TCPConn).SetLinger(0)
			peer.Close()
			var err error
			for err == nil { // the first may be on its way already
				_, err = c.Write([]byte("x"))
			}
			if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) || !strings.Contains(err.Error(), "->127.0.0.1:") {
				t.Error(err)
			}
		}},
	} {
		for kind, dialer := range map[string]nats.CustomDialer{"ordinary": &net.Dialer{}, "raw": &rawDialer{net.Dialer{Timeout: time.Second}}} {
			t.Run(tt.name+"/"+kind, func(t *testing.T) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				c, err := dialer.Dial("tcp", l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if _, raw := c.(*rawConn); raw != (kind == "raw") {
					t.Fatalf("it is a %T", c)
				}
				peer, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer peer.Close()
				tt.test(t, c, peer)
			})
		}
	}
}

// TestRawDialerShares: of several addresses none takes more than its share of the time, and each is tried.
func TestRawDialerShares(t *testing.T) {
	const timeout = time.Minute
	tried := map[string]bool{}
	d := &rawDialer{net.Dialer{Timeout: timeout, ControlContext: func(ctx context.Context, _, address string, _ syscall.RawConn) error {
		tried[address] = true
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > timeout/3 {
			t.Errorf("%s may take until %v", address, deadline)
		}
		return errors.New("nobody is there")
	}}}
	c, err := d.dialAny("tcp", []string{"127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1"})
	if c != nil || err == nil || !strings.Contains(err.Error(), "nobody is there") || len(tried) != 3 {
		t.Errorf("%v, %v after %v", c, err, tried)
	}
}

func late(t *testing.T, op string, err error) {
	t.Helper()
	var timeout net.Error
	if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() || !strings.HasPrefix(err.Error(), op+" tcp 127.0.0.1:") {
		t.Errorf("%s: %v", op, err)
	}
}

// TestConnectIsRaw: what programs connect with is raw, with TLS on top of it where the server wants that, unless there
// is a dialer already.
func TestConnectIsRaw(t *testing.T) {
	cert, pool := selfSigned(t)
	plain := runServer(t, &server.Options{Port: -1})
	config := &tls.Config{Certificates: []tls.Certificate{cert}}
	secure := runServer(t, &server.Options{Port: -1, TLS: true, TLSConfig: config})
	first := runServer(t, &server.Options{Port: -1, TLS: true, TLSConfig: config, TLSHandshakeFirst: true})
	web := runServer(t, &server.Options{Port: -1, Websocket: server.WebsocketOpts{Host: "127.0.0.1", Port: -1, NoTLS: true}})
	secureWeb := runServer(t, &server.Options{Port: -1, Websocket: server.WebsocketOpts{Host: "127.0.0.1", Port: -1, TLSConfig: config}})
	for _, tt := range []struct {
		name, url string
		opts      []nats.Option
		raw       bool
	}{
		{"plain", plain.ClientURL(), nil, true},
		{"TLS", secure.ClientURL(), []nats.Option{nats.Secure(&tls.Config{RootCAs: pool})}, true},
		{"TLS first", first.ClientURL(), []nats.Option{nats.Secure(&tls.Config{RootCAs: pool}), nats.TLSHandshakeFirst()}, true},
		{"TLS to a name", strings.Replace(secure.ClientURL(), "127.0.0.1", "localhost", 1), []nats.Option{nats.Secure(&tls.Config{RootCAs: pool})}, true},
		{"WebSocket", web.WebsocketURL(), nil, true},
		{"WebSocket and TLS", secureWeb.WebsocketURL(), []nats.Option{nats.Secure(&tls.Config{RootCAs: pool})}, true},
		{"another's options", plain.ClientURL(), []nats.Option{nats.Dialer(&net.Dialer{})}, false},
		{"another dialer", plain.ClientURL(), []nats.Option{nats.SetCustomDialer(&net.Dialer{})}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			target, err := NATSFlags{Server: tt.url}.Resolve()
			if err != nil {
				t.Fatal(err)
			}
			nc, err := target.Connect(t.Context(), ConnectOptions{Extra: tt.opts})
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			if _, raw := nc.Opts.CustomDialer.(*rawDialer); raw != tt.raw {
				t.Errorf("its dialer is a %T", nc.Opts.CustomDialer)
			}
			large := bytes.Repeat([]byte{1}, 1<<20)
			if _, err := nc.Subscribe("echo", func(m *nats.Msg) { m.Respond(m.Data) }); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			for range 20 {
				m, err := nc.RequestWithContext(ctx, "echo", large)
				if err != nil || !bytes.Equal(m.Data, large) {
					t.Fatal(err)
				}
			}
		})
	}
}

// selfSigned is a certificate for 127.0.0.1, and who trusts it.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, pool
}
