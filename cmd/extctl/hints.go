package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/pkg/mesh"
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
	hintAddress     = "check the address: nats://HOST:PORT; NATS's clients usually use port 4222, and 8222 is its HTTP port for monitoring"
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
	{is(io.EOF), "what listens there closed the connection: is it NATS? " + hintAddress +
		`; a NATS server with TLS first (handshake_first) needs a context of the nats command with "tls_first": true`},
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
	return ok && e.Timeout() || errors.Is(err, nats.ErrTimeout)
}

// explainConnect adds the cause and what to do about it to the error of a failed connection.
func explainConnect(t daemon.Target, err error) error {
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
	if f.hint == hintNoServer && t.Source == "NATS_URL" && len(t.NotUsed) > 0 {
		f.hint = "NATS_URL is the address of another server; unset it to use " + t.NotUsed[0]
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

// errInboxDenied is the cause with which a command's context ends when NATS does not allow it to receive any reply.
var errInboxDenied = errors.New("replies are not allowed")

// explainInbox is the error of a user that may not receive replies under the inbox prefix in use.
func explainInbox(t daemon.Target) error {
	who, prefix := "this user", "_INBOX.USER"
	if users := t.Users(); len(users) > 0 {
		who, prefix = "the user "+users[0], terminal.ShellWord("_INBOX."+users[0])
	}
	f := fail(exitDenied, "NATS does not allow %s to receive replies on %s.>: %w", who, t.InboxPrefix(), nats.ErrPermissionViolation)
	f.err = &reworded{fmt.Sprintf("NATS does not allow %s to receive replies on %s.>", who, t.InboxPrefix()), f.err}
	return f.with("this server gives each user reply subjects of its own: add --inbox-prefix "+prefix+
		", or what the server's configuration has for this user, or set inbox_prefix in the context of the nats command", nil)
}

// jetStreamCauses are the reasons for which a registry cannot use JetStream, with what the user can do; the first match applies.
var jetStreamCauses = []struct {
	match      func(error) bool
	what, hint string
}{
	{textOf("denied"), "NATS does not let it use JetStream", "the registry's NATS user lacks a permission; docs/operations.md lists what each role needs"},
	{textOf("err_code=10039"), "its account has no JetStream", "enable JetStream for this account in the configuration of the NATS server, or in the account's JWT"},
	{textOf("err_code=10076", "no responders"), "JetStream is not available on this server", "start the NATS server with JetStream: nats-server -js, or a jetstream block in its configuration"},
	{textOf("err_code=10002", "err_code=10027", "err_code=10113", "err_code=10120", "err_code=10122"), "the limits of its account do not allow the stream of the catalog",
		"change the limits, or create the stream first, for example: nats stream add KV_BUCKET --subjects '$KV.BUCKET.>' --max-msgs-per-subject 1 --discard new --max-bytes 64MB --defaults; the registry corrects the rest"},
	{textOf("no atomic batches"), "its NATS server is too old", "upgrade nats-server; docs/operations.md has the version"},
	{textOf(""), "it cannot use JetStream", "`extctl show registry` has the registry's status; check the NATS servers"},
}

// registryProbe is the time limit of the request for the reason why there is no catalog.
var registryProbe = time.Second

// explainNoCatalog returns why there is no catalog, with what to do about it. It asks the registry, which runs without
// JetStream, too.
func (s *session) explainNoCatalog(err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), registryProbe)
	defer cancel()
	f := &failure{code: exitNoNATS, err: err}
	raw, requestErr := s.request(ctx, s.prefix.RegistryRPC(), "the registry", "status", nil)
	if errors.Is(requestErr, nats.ErrPermissionViolation) {
		f.hint = "is a registry running, and is --prefix right? This user may not ask it"
		return f
	}
	var status struct {
		Name, Version, JetStream, Leader string
		Leading                          bool
	}
	if requestErr != nil || json.Unmarshal(raw, &status) != nil {
		f.err = &reworded{fmt.Sprintf("no catalog: no registry runs on this mesh (NATS at %s, prefix %s)", natsconn.Server(s.nc), s.prefix), err}
		f.hint = "start one with `registry --server URL`, or run a whole mesh with `extctl up`; is --prefix right?"
		return f
	}
	who := terminal.Clean(strings.TrimSpace(status.Name + " " + status.Version))
	ok := status.JetStream == "" || status.JetStream == "ok"
	switch {
	case ok && status.Leader != "" || status.Leading:
		f.err = &reworded{fmt.Sprintf("no catalog: the registry %s has a catalog, but the JetStream of this server does not have it: this server is a leaf node, or this is another account", who), err}
		f.hint = "docs/operations.md, Leaf nodes, has the configuration with which the catalog can be read here"
	case ok:
		f.err = &reworded{fmt.Sprintf("no catalog: a registry runs (%s) and has not created it yet", who), err}
		f.hint = "try again in a few seconds; `extctl show registry` has the registry's status"
	default:
		for _, c := range jetStreamCauses {
			if c.match(errors.New(status.JetStream)) {
				f.err = &reworded{fmt.Sprintf("no catalog: a registry runs (%s), but %s: %s", who, c.what, status.JetStream), err}
				f.hint = strings.ReplaceAll(c.hint, "BUCKET", s.prefix.Bucket())
				break
			}
		}
	}
	return f
}

// noteNoCatalog prints at once that there is no catalog yet, for a command that waits for one.
func (s *session) noteNoCatalog(ctx context.Context) {
	_, err := s.oneExtension(ctx, "registry") // any key: only the bucket's absence matters
	if !errors.Is(err, mesh.ErrNoCatalog) || ctx.Err() != nil {
		return
	}
	err = s.explainNoCatalog(err)
	s.note("extctl: connected to NATS at %s; waiting for a catalog: %s", natsconn.Server(s.nc), terminal.Clean(strings.TrimPrefix(err.Error(), "no catalog: ")))
}
