package natsconn_test

import (
	"bytes"
	"crypto/tls"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
)

// BenchmarkRequest measures a request and its reply, each over its own connection, with the server in the same process.
func BenchmarkRequest(b *testing.B) {
	cert, pool := selfSigned(b)
	plain := runServer(b, &server.Options{Port: -1})
	secure := runServer(b, &server.Options{Port: -1, TLS: true, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}})
	for _, via := range []struct {
		name, url string
		opts      []nats.Option
	}{
		{"plain", plain.ClientURL(), nil},
		{"TLS", secure.ClientURL(), []nats.Option{nats.Secure(&tls.Config{RootCAs: pool})}},
	} {
		for _, kind := range []string{"ordinary", "quick"} {
			connect := func(b *testing.B) *nats.Conn {
				opts := via.opts
				if kind == "quick" {
					opts = append(opts[:len(opts):len(opts)], natsconn.Option())
				}
				nc, err := nats.Connect(via.url, opts...)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(nc.Close)
				return nc
			}
			data := bytes.Repeat([]byte("x"), 256)
			request := func(b *testing.B, nc *nats.Conn) {
				if _, err := nc.Request("echo", data, 10*time.Second); err != nil {
					b.Error(err)
				}
			}
			serve := func(b *testing.B) {
				nc := connect(b)
				if _, err := nc.Subscribe("echo", func(m *nats.Msg) { m.Respond(m.Data) }); err != nil {
					b.Fatal(err)
				}
				if err := nc.Flush(); err != nil {
					b.Fatal(err)
				}
			}
			b.Run("alone/"+via.name+"/"+kind, func(b *testing.B) {
				serve(b)
				nc := connect(b)
				for b.Loop() {
					request(b, nc)
				}
			})
			b.Run("64/"+via.name+"/"+kind, func(b *testing.B) {
				serve(b)
				nc := connect(b)
				b.SetParallelism(32)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						request(b, nc)
					}
				})
			})
		}
	}
}
