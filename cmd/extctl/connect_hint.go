package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/daemon"
)

// reworded is an error with another text for people; programs get what it wraps.
type reworded struct {
	text string
	err  error
}

func (e *reworded) Error() string { return e.text }
func (e *reworded) Unwrap() error { return e.err }

// Hints for connections that fail. The causes below have the rest.
const (
	hintNoServer    = "start one with `extctl up`, or give its address with --server, --context or NATS_URL"
	hintAddress     = "check the address: nats://HOST:PORT, and NATS's clients usually use port 4222"
	hintCredentials = "give a user and password in the address (nats://USER:PASSWORD@HOST), or pass --creds, --nkey, or --tlscert with --tlskey; a context of the nats command has all of it: --context NAME"
	hintUpPassword  = "if it is the server of an extctl up with --data DIR: export NATS_URL=$(extctl url --data DIR). Otherwise "
)

// connectCauses are the reasons for which a connection fails, with what the user can do; the first match applies. hint may
// contain %[1]s, the address.
var connectCauses = []struct {
	match func(error) bool
	hint  string
}{
	{textOf("unable to extract key pair", "no nkey seed found", "no user JWT", "invalid encoded key"),
		"the credentials file must contain a user's JWT and seed, as `nsc generate creds` writes them"},
	{is(nats.ErrNkeysNotSupported), "this server does not accept keys: use the credentials that its administrator gave you"},
	{is(nats.ErrSecureConnWanted), "this server does not use TLS: write nats:// instead of tls://, and leave out --tlsca, --tlscert and --tlskey"},
	{is(nats.ErrSecureConnRequired), "this server requires TLS: write tls:// instead of nats://, with --tlsca if its certificate is signed by your own authority"},
	{as[x509.UnknownAuthorityError], "the server's certificate is signed by an authority that this host does not trust: pass the authority's certificate with --tlsca FILE"},
	{as[x509.HostnameError], "the server's certificate is for other names: use one of them in the address"},
	{as[x509.CertificateInvalidError], "the server's certificate cannot be used now: has it expired, and is this host's clock right?"},
	{textOf("certificate required", "bad certificate", "unknown certificate authority"), "this server accepts only clients with a certificate that it trusts: pass --tlscert FILE and --tlskey FILE"},
	{as[tls.RecordHeaderError], "the server does not answer with TLS on this port: " + hintAddress},
	{as[*net.DNSError], "the host's name cannot be resolved: " + hintAddress},
	{textOf("invalid port", "unknown port"), "a port is a number from 1 to 65535: " + hintAddress},
	{is(nats.ErrNoInfoReceived), "what listens there is not NATS: " + hintAddress},
	{isTimeout, "nothing answered in time: " + hintAddress + "; a firewall may be in between"},
	{is(io.EOF), "what listens there closed the connection: is it NATS? " + hintAddress},
}

func textOf(parts ...string) func(error) bool {
	return func(err error) bool {
		for _, p := range parts {
			if strings.Contains(err.Error(), p) {
				return true
			}
		}
		return false
	}
}

func isTimeout(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

// explainConnect adds the cause and what to do about it to the error of a failed connection.
func explainConnect(ctx context.Context, t daemon.Target, err error) error {
	e, ok := errors.AsType[*daemon.ConnectError](err)
	if !ok {
		return err
	}
	f := &failure{code: exitCode(err), err: err, hint: hintNoServer}
	if isAuth(err) {
		explainRefused(f, t, e)
		return f
	}
	for _, c := range connectCauses {
		if c.match(e.Err) {
			f.hint = c.hint
			break
		}
	}
	if isTimeout(e.Err) || errors.Is(e.Err, io.EOF) || errors.Is(e.Err, nats.ErrNoInfoReceived) {
		if addr, http := speaksHTTP(ctx, t.Servers); http {
			f.err = &reworded{fmt.Sprintf("%s (from %s) is an HTTP server, not NATS", addr, e.Source), err}
			f.hint = hintAddress + "; 8222 is its port for monitoring"
		}
	}
	return f
}

// explainRefused explains that NATS has refused the credentials, or requires some.
func explainRefused(f *failure, t daemon.Target, e *daemon.ConnectError) {
	switch users := t.Users(); {
	case !t.HasCredentials():
		f.err = &reworded{fmt.Sprintf("NATS at %s (from %s) requires credentials: %v", e.Addr, e.Source, e.Err), f.err}
		f.hint = hintUpPassword + hintCredentials
	case len(users) > 0:
		f.err = &reworded{fmt.Sprintf("NATS at %s (from %s) refused the user %s: %v", e.Addr, e.Source, users[0], e.Err), f.err}
		f.hint = "the name or the password is wrong, or the user has been removed; a running extctl up has another password with each start: extctl url"
	default:
		f.err = &reworded{fmt.Sprintf("NATS at %s (from %s) refused the credentials: %v", e.Addr, e.Source, e.Err), f.err}
		f.hint = "they are not those of a user of this server, or have expired: " + hintCredentials
	}
}

// httpProbe is the time limit for finding out whether an address is that of an HTTP server.
const httpProbe = time.Second

// speaksHTTP reports whether the first of the addresses is that of an HTTP server. Its port for monitoring is what people
// most often use instead of that of NATS.
func speaksHTTP(ctx context.Context, servers []string) (addr string, ok bool) {
	if len(servers) == 0 {
		return "", false
	}
	s := servers[0]
	if !strings.Contains(s, "://") {
		s = "nats://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Port() == "" {
		return "", false
	}
	d := net.Dialer{Timeout: httpProbe}
	c, err := d.DialContext(context.WithoutCancel(ctx), "tcp", u.Host) // the time of the command may be over
	if err != nil {
		return "", false
	}
	defer func() { _ = c.Close() }() // nothing more is read or written
	if err := c.SetDeadline(time.Now().Add(httpProbe)); err != nil {
		return "", false
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return "", false
	}
	start := make([]byte, 5)
	_, err = io.ReadFull(c, start)
	return u.Host, err == nil && string(start) == "HTTP/"
}
