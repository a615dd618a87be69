package natsconn_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/leaks"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/natstest"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// TestOption: connections of the package carry the same traffic as others, with TLS or WebSockets on top, single
// messages and batches, small and large. Connections with a custom dialer or without a socket are not changed.
func TestOption(t *testing.T) {
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
		ours      bool
	}{
		{"plain", plain.ClientURL(), nil, true},
		{"TLS", secure.ClientURL(), []nats.Option{nats.Secure(&tls.Config{RootCAs: pool})}, true},
		{"TLS first", first.ClientURL(), []nats.Option{nats.Secure(&tls.Config{RootCAs: pool}), nats.TLSHandshakeFirst()}, true},
		{"TLS to a name", strings.Replace(secure.ClientURL(), "127.0.0.1", "localhost", 1), []nats.Option{nats.Secure(&tls.Config{RootCAs: pool})}, true},
		{"WebSocket", web.WebsocketURL(), nil, true},
		{"WebSocket and TLS", secureWeb.WebsocketURL(), []nats.Option{nats.Secure(&tls.Config{RootCAs: pool})}, true},
		{"a custom net.Dialer", plain.ClientURL(), []nats.Option{nats.Dialer(&net.Dialer{})}, false},
		{"a custom dialer", plain.ClientURL(), []nats.Option{nats.SetCustomDialer(&net.Dialer{})}, false},
		{"in process", "", []nats.Option{nats.InProcessServer(plain)}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nc, err := nats.Connect(tt.url, append(tt.opts, nats.Timeout(time.Minute), natsconn.Option())...)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			if ours := fmt.Sprintf("%T", nc.Opts.CustomDialer) == "*natsconn.dialer"; ours != tt.ours {
				t.Errorf("the dialer is a %T", nc.Opts.CustomDialer)
			}
			if small := nc.Opts.WriteBufferSize == 1; small != tt.ours {
				t.Errorf("the write buffer is %d", nc.Opts.WriteBufferSize)
			}
			if _, err := nc.Subscribe("echo", func(m *nats.Msg) { m.Respond(m.Data) }); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			echo := func(size int) {
				want := bytes.Repeat([]byte{byte(size)}, size)
				m, err := nc.RequestWithContext(ctx, "echo", want)
				if err != nil || !bytes.Equal(m.Data, want) {
					t.Errorf("%d bytes: %v", size, err)
				}
			}
			for _, size := range []int{1 << 20, 0, 1, 256, 16 << 10} {
				echo(size)
			}
			var wg sync.WaitGroup
			for i := range 32 {
				wg.Go(func() {
					for j := range 20 {
						echo((i + 1) * j * 20)
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestReconnect: messages published while NATS is unreachable arrive after the reconnect.
func TestReconnect(t *testing.T) {
	srv := natstest.Start(t, &server.Options{Port: -1})
	back := make(chan struct{}, 1)
	nc, err := nats.Connect(srv.ClientURL(), nats.ReconnectWait(time.Millisecond), nats.MaxReconnects(-1),
		nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }), nats.Timeout(time.Minute), natsconn.Option())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	got := make(chan *nats.Msg, 100)
	if _, err := nc.ChanSubscribe("here", got); err != nil {
		t.Fatal(err)
	}
	srv.Restart(func(*server.Options) { // the server does not run here
		for nc.IsConnected() {
			nc.Publish("lost", nil) // the connection is closed but not yet detected as such: not an error
		}
		for i := range 50 {
			if err := nc.Publish("here", []byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
		}
	})
	<-back
	for i := range 50 {
		select {
		case m := <-got:
			if m.Data[0] != byte(i) {
				t.Fatalf("message %d arrived as number %d", m.Data[0], i)
			}
		case <-time.After(time.Minute):
			t.Fatalf("message %d did not arrive", i)
		}
	}
}

// TestTurnedAway: nats.go does not close connections that the server refuses. They must leave no goroutine, which
// TestMain checks, and the garbage collector must be able to close them.
func TestTurnedAway(t *testing.T) {
	srv := runServer(t, &server.Options{Port: -1})
	address := srv.Addr().String()
	nc, err := nats.Connect(srv.ClientURL(), nats.ReconnectWait(time.Millisecond), nats.ReconnectJitter(0, 0), nats.MaxReconnects(-1), nats.Timeout(time.Minute), natsconn.Option())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	srv.Shutdown()
	srv.WaitForShutdown()
	var l net.Listener
	natstest.Eventually(t, "the port is free again", func() bool { // a child of another test may still hold it
		l, err = net.Listen("tcp", address)
		return err == nil
	})
	defer l.Close()
	var open atomic.Int32
	for range 20 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "INFO {\"max_payload\":1048576}\r\n-ERR 'maximum connections exceeded'\r\n")
		open.Add(1)
		go func() { // ends with the connection
			io.Copy(io.Discard, c)
			c.Close()
			open.Add(-1)
		}()
	}
	nc.Close() // it holds the last one
	l.Close()
	natstest.Eventually(t, "the collector has closed the refused connections", func() bool { runtime.GC(); return open.Load() == 0 })
}

func runServer(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	o.Host, o.NoLog, o.NoSigs, o.AuthTimeout, o.TLSTimeout = "127.0.0.1", true, true, 60, 60
	if o.Websocket.Port != 0 {
		o.Websocket.HandshakeTimeout = time.Minute
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server did not start")
	}
	return s
}

// selfSigned returns a certificate for 127.0.0.1 and a pool that trusts it.
func selfSigned(t testing.TB) (tls.Certificate, *x509.CertPool) {
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

// TestOnlyWhile checks that a connection that is not permitted is not made.
func TestOnlyWhile(t *testing.T) {
	srv := natstest.Start(t, &server.Options{Port: -1})
	no := errors.New("not permitted")
	for _, want := range []error{nil, no} {
		asked := false
		nc, err := nats.Connect(srv.ClientURL(), nats.Timeout(time.Minute), natsconn.Option(), natsconn.OnlyWhile(func() error { asked = true; return want }))
		if !asked || (err == nil) != (want == nil) {
			t.Errorf("%v: %v, asked: %t", want, err, asked)
		}
		if err == nil {
			nc.Close()
		}
	}
}

// TestServerHangs: a connection ends if its server sends nothing any more, not even the answers to pings.
func TestServerHangs(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the test
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, `INFO {"server_id":"x","max_payload":1024}`+"\r\n")
		for lines := bufio.NewScanner(c); lines.Scan(); {
			if lines.Text() == "PING" { // only the first one, with which nats.go connects
				_, _ = io.WriteString(c, "PONG\r\n")
				<-t.Context().Done()
				return
			}
		}
	}()
	lost := make(chan error, 1)
	nc, err := nats.Connect("nats://"+l.Addr().String(), nats.PingInterval(100*time.Millisecond), nats.NoReconnect(),
		nats.Timeout(time.Minute), nats.ClosedHandler(func(nc *nats.Conn) { lost <- nc.LastError() }), natsconn.Option())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := <-lost; !errors.Is(err, nats.ErrStaleConnection) {
		t.Error(err)
	}
}
