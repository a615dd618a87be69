package daemon

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/adrg/xdg"
	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"

	"github.com/extmesh/extmesh/internal/natsd/storelock"
	"github.com/extmesh/extmesh/internal/wire"
)

// NATSFlags configure how a program connects to NATS (docs/operations.md).
type NATSFlags struct {
	Server      string // URLs, comma-separated
	Context     string // a context of the nats CLI: its name, or an absolute path
	Creds       string
	NKey        string
	TLSCert     string
	TLSKey      string
	TLSCA       string
	InboxPrefix string
	Prefix      string // the mesh's subject prefix; see mesh.ParsePrefix
}

// AddFlags defines the flags on fs.
func (f *NATSFlags) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&f.Server, "server", "", "NATS server `URL`s, comma-separated")
	fs.StringVar(&f.Context, "context", "", "context of the nats CLI, by `NAME` or by the absolute path of its file: address, credentials and inbox prefix")
	fs.StringVar(&f.Creds, "creds", "", "NATS credentials `FILE`")
	fs.StringVar(&f.NKey, "nkey", "", "NKey seed `FILE`")
	fs.StringVar(&f.TLSCert, "tlscert", "", "TLS client certificate `FILE`")
	fs.StringVar(&f.TLSKey, "tlskey", "", "TLS client key `FILE`")
	fs.StringVar(&f.TLSCA, "tlsca", "", "TLS certificate authority `FILE`")
	fs.StringVar(&f.InboxPrefix, "inbox-prefix", "", "`PREFIX` of reply subjects, where permissions want one (default _INBOX)")
	fs.StringVar(&f.Prefix, "prefix", wire.DefaultPrefix, "the mesh's subject `PREFIX`")
}

// Target is a NATS server, or cluster, to connect to.
type Target struct {
	Servers []string
	Source  string   // the origin of the address, for messages: --server, NATS_URL, …
	NotUsed []string // other addresses that the environment has, each with its origin; none with --server or --context
	Secrets Credentials
	base    nats.Options
	upURL   string // with its password, if this is a running `extctl up`
	context string // the file of the nats CLI's context, if one is used
	prefix  string // of the mesh
}

// Addr returns the servers' addresses without passwords and tokens, for messages.
func (t Target) Addr() string {
	var out []string
	for _, s := range t.Servers {
		u, err := url.Parse(s)
		if err != nil { // Resolve refuses it
			u = &url.URL{Scheme: "nats", Host: "unknown"}
		}
		if _, ok := u.User.Password(); !ok && u.User != nil { // a user alone is a token
			u.User = url.User("xxxxx")
		}
		out = append(out, u.Redacted())
	}
	return strings.Join(out, ",")
}

// Resolve decides which NATS to use: --server, else --context, else NATS_URL, else a running `extctl up`, else the
// nats CLI's selected context, else nats://127.0.0.1:4222. Flags for credentials and TLS apply to any of them.
func (f NATSFlags) Resolve() (Target, error) {
	t, err := f.address()
	if err != nil {
		return Target{}, err
	}
	opts, err := f.credentials()
	if err != nil {
		return Target{}, err
	}
	for _, opt := range opts {
		if err := opt(&t.base); err != nil {
			return Target{}, UsageError{Err: err}
		}
	}
	t.prefix = f.Prefix
	if err := checkInboxPrefix(t.base.InboxPrefix, t.prefix); err != nil {
		return Target{}, UsageError{Err: err}
	}
	for _, s := range t.Servers {
		if err := checkURL(s); err != nil {
			return Target{}, UsageError{Err: fmt.Errorf("NATS server from %s: %w", t.Source, err)}
		}
	}
	t.base.Servers = t.Servers
	t.addPassword(f)
	secrets := f.secretsOf(t)
	secrets.Files = append(secrets.Files, t.Secrets.Files...)
	t.Secrets = secrets
	return t, nil
}

// InProcess returns the server that runs in this process; natsd.Server.InProcess returns the option.
func InProcess(server nats.Option) (Target, error) {
	t := Target{Servers: []string{"nats://in-process"}, Source: "this process", base: nats.GetDefaultOptions()}
	t.base.Servers = t.Servers
	err := server(&t.base)
	t.Secrets = NATSFlags{}.secretsOf(t)
	return t, err
}

// addPassword adds the password of the `extctl up` that runs on this host for the same user, if t is its address and has
// no credentials of its own.
func (t *Target) addPassword(f NATSFlags) {
	if len(t.Servers) != 1 || f.Creds != "" || f.NKey != "" || t.base.User != "" || t.base.Token != "" {
		return
	}
	store := StoreDir("")
	up, ok := storelock.Running(store)
	if !ok || up.Password == "" || !sameAddress(t.Servers[0], up.URL) {
		return
	}
	t.base.User, t.base.Password = storelock.User, up.Password
	t.upURL = up.URLWithPassword()
	t.Secrets.Files = append(t.Secrets.Files, storelock.NotePath(store))
}

// forgetUp undoes addPassword.
func (t *Target) forgetUp() {
	if t.upURL != "" {
		t.upURL, t.base.User, t.base.Password = "", "", ""
	}
}

// isUp reports whether address is what `extctl url` prints for up, or printed for an earlier run: each has another password.
func isUp(address string, up storelock.Info) bool {
	u, err := url.Parse(address)
	if err != nil || up.Password == "" || u.User.Username() != storelock.User {
		return false
	}
	u.User = nil
	return sameAddress(u.String(), up.URL)
}

// currentUser returns the user and password of the `extctl up` at an address of this host, which changes with each start; the
// given password, if none runs there.
func currentUser(address, password string) nats.UserInfoCB {
	return func() (string, string) {
		if up, ok := storelock.Running(StoreDir("")); ok && up.Password != "" && sameAddress(address, up.URL) {
			return storelock.User, up.Password
		}
		return storelock.User, password
	}
}

// contextUser returns the password that a context of the nats CLI has now for its user. Another user has another inbox, which
// the connection does not listen to.
func contextUser(path, user, password string) nats.UserInfoCB {
	return func() (string, string) {
		if now, err := contextTarget(path, path); err == nil && now.base.User == user {
			return user, now.base.Password
		}
		return user, password
	}
}

// sameAddress reports whether a, which must not contain a user, is the address b of a server on this host.
func sameAddress(a, b string) bool {
	parse := func(s string) (host, port string, ok bool) {
		u, err := url.Parse(withScheme(s))
		if err != nil || u.User != nil || u.Scheme != "nats" && u.Scheme != "tls" {
			return "", "", false
		}
		if host = u.Hostname(); host == "localhost" {
			host = "127.0.0.1"
		}
		return host, cmp.Or(u.Port(), strconv.Itoa(nats.DefaultPort)), true
	}
	hostA, portA, okA := parse(a)
	hostB, portB, okB := parse(b)
	return okA && okB && hostA == hostB && portA == portB
}

// URLs returns the servers' addresses, with the credentials that can be part of an address: those of the addresses as
// they were given, and those of a running `extctl up`.
func (t Target) URLs() string { return cmp.Or(t.upURL, strings.Join(t.Servers, ",")) }

// IsUp reports whether the address is that of a running `extctl up`, which every program of the user finds by itself.
func (t Target) IsUp() bool { return t.upURL != "" }

// IsEndedUp reports whether the address, in NATS_URL, is that of an `extctl up` that has ended: on this machine, with the user that
// only an `extctl up` has, where nothing listens any more.
func (t Target) IsEndedUp() bool {
	if t.Source != "NATS_URL" || len(t.Servers) != 1 {
		return false
	}
	u, err := url.Parse(t.Servers[0])
	if err != nil || u.User.Username() != storelock.User || !net.ParseIP(u.Hostname()).IsLoopback() {
		return false
	}
	c, err := net.DialTimeout("tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "4222")), time.Second)
	if err == nil {
		_ = c.Close() // nothing was sent
	}
	timeout, ok := errors.AsType[net.Error](err)
	return err != nil && !(ok && timeout.Timeout())
}

func (f NATSFlags) address() (Target, error) {
	t := Target{base: nats.GetDefaultOptions()}
	switch {
	case f.Server != "":
		t.Servers, t.Source = splitURLs(f.Server), "--server"
		return t, nil
	case f.Context != "":
		return contextTarget(f.Context, "nats context "+f.Context)
	}
	up, running := storelock.Running(StoreDir(""))
	running = running && up.URL != ""
	if url := os.Getenv("NATS_URL"); url != "" {
		t.Servers, t.Source = splitURLs(url), "NATS_URL"
		if running && len(t.Servers) == 1 && isUp(t.Servers[0], up) {
			t.Servers = []string{up.URL} // addPassword adds the present one
		}
		if running && !strings.HasSuffix(t.Addr(), strings.TrimPrefix(up.URL, "nats://")) {
			t.NotUsed = []string{upSource}
		}
	} else if running {
		t.Servers, t.Source = []string{up.URL}, upSource
	}
	name := selectedContext()
	if t.Source == "" {
		source := "the selected nats context"
		if name != "" {
			source += " " + name
		}
		return contextTarget("", source)
	}
	if name != "" && t.Source == upSource {
		t.NotUsed = []string{"the selected nats context " + name}
	}
	return t, nil
}

// upSource is the origin of the address of an `extctl up` on this host.
const upSource = "the running extctl up"

// contextTarget reads a context of the nats CLI. An empty name means the selected one, or the default address if none
// is selected.
func contextTarget(name, source string) (Target, error) {
	// natscontext can only connect. An option that copies what it has built from the context and then fails reads the
	// context without connecting.
	stop := errors.New("stop")
	t := Target{Source: source}
	_, _, err := natscontext.Connect(name, func(o *nats.Options) error {
		t.base = *o
		return stop
	})
	t.context = contextFile(name)
	if !errors.Is(err, stop) && name == "" && t.context == "" { // nothing is selected; natscontext fails if the user has no name
		t.base, err = nats.GetDefaultOptions(), stop
	}
	if !errors.Is(err, stop) {
		return Target{}, UsageError{Err: fmt.Errorf("%s: %w", source, err)}
	}
	t.Servers = splitURLs(strings.Join(t.base.Servers, ","))
	if len(t.Servers) == 0 {
		t.Servers = []string{nats.DefaultURL}
		if name == "" {
			t.Source = "the default"
		}
	}
	return t, nil
}

func (f NATSFlags) credentials() ([]nats.Option, error) {
	var opts []nats.Option
	if f.Creds != "" {
		if _, err := os.Stat(f.Creds); err != nil {
			return nil, UsageError{Err: fmt.Errorf("--creds: %w", err)}
		}
		opts = append(opts, nats.UserCredentials(f.Creds))
	}
	if f.NKey != "" {
		opt, err := nats.NkeyOptionFromSeed(f.NKey)
		if err != nil {
			return nil, UsageError{Err: fmt.Errorf("--nkey: %w", err)}
		}
		opts = append(opts, opt)
	}
	if (f.TLSCert == "") != (f.TLSKey == "") {
		return nil, UsageError{Err: errors.New("--tlscert and --tlskey go together")}
	}
	if f.TLSCert != "" {
		opts = append(opts, nats.ClientCert(f.TLSCert, f.TLSKey))
	}
	if f.TLSCA != "" {
		opts = append(opts, nats.RootCAs(f.TLSCA))
	}
	if f.InboxPrefix != "" {
		if err := checkInboxPrefix(f.InboxPrefix, f.Prefix); err != nil {
			return nil, UsageError{Err: err}
		}
		opts = append(opts, nats.CustomInboxPrefix(f.InboxPrefix))
	}
	return opts, nil
}

// checkInboxPrefix checks that an inbox prefix consists of subject tokens without wildcards. It contains the name of a user,
// and is often put together by a script: with "*" in it a program would receive the answers of others. Below the mesh's prefix it would
// get no answers: extensions do not send there.
func checkInboxPrefix(prefix, mesh string) error {
	if prefix == "" {
		return nil
	}
	for token := range strings.SplitSeq(prefix, ".") {
		if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r == '*' || r == '>' || unicode.IsSpace(r) || unicode.IsControl(r) }) {
			return fmt.Errorf("inbox prefix %q: want tokens joined by dots, without *, > and spaces, such as _INBOX.agent", prefix)
		}
	}
	if mesh != "" && strings.HasPrefix(prefix+".", mesh+".") {
		return fmt.Errorf("inbox prefix %q: subjects below %s belong to the mesh, which sends no answers there; use _INBOX.agent, for example", prefix, mesh)
	}
	if strings.HasPrefix(prefix, "$") {
		return fmt.Errorf("inbox prefix %q: subjects that begin with $ belong to NATS; use _INBOX.agent, for example", prefix)
	}
	return nil
}

func splitURLs(s string) []string {
	var out []string
	for p := range strings.SplitSeq(s, ",") {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, withScheme(p))
		}
	}
	return out
}

// withScheme adds the scheme that nats.go assumes. Without one, package url would not find the password.
func withScheme(server string) string {
	if !strings.Contains(server, "://") {
		server = "nats://" + server
	}
	return server
}

// checkURL reports errors that nats.go would hide among other reasons for a failed connection. They do not contain the
// password, and so nothing of a URL that cannot be parsed.
func checkURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return errors.New("it is not a URL; write special characters of a password as in %2F, which is /")
	case u.Hostname() == "":
		return fmt.Errorf("the address with the scheme %s has no host", u.Scheme)
	case !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme):
		return fmt.Errorf("%s: want nats, tls, ws or wss, not %s", u.Host, u.Scheme)
	}
	return nil
}

// StoreDir returns where `extctl up` stores its server's data below the data directory dir. An empty dir means the
// user's own, $XDG_DATA_HOME/extmesh or its equivalent on other systems.
func StoreDir(dir string) string {
	return filepath.Join(cmp.Or(dir, filepath.Join(xdg.DataHome, "extmesh")), "nats")
}

// As returns the same servers with the credentials of a context of the nats CLI, which is given by name or absolute path.
// The TLS settings of t apply unless the context has some.
func (t Target) As(context string) (Target, error) {
	as, err := NATSFlags{Context: context, Prefix: t.prefix}.Resolve()
	if err != nil {
		return Target{}, err
	}
	if t.upURL == "" { // the default address, which a context without one gets, can be that of an extctl up; t's servers must not get its password
		as.forgetUp()
	}
	as.Servers = nil
	for _, s := range t.Servers {
		if u, err := url.Parse(s); err == nil && u.User != nil { // nats.go would prefer it
			u.User = nil
			s = u.String()
		}
		as.Servers = append(as.Servers, s)
	}
	as.base.Servers, as.Source = as.Servers, t.Source
	if as.base.TLSConfig == nil && as.base.RootCAsCB == nil && !as.base.Secure {
		as.base.TLSConfig, as.base.Secure = t.base.TLSConfig, t.base.Secure
		as.base.RootCAsCB, as.base.TLSCertCB = t.base.RootCAsCB, t.base.TLSCertCB
		as.base.TLSHandshakeFirst = t.base.TLSHandshakeFirst
	}
	if as.base.CustomDialer == nil { // a proxy
		as.base.CustomDialer = t.base.CustomDialer
	}
	if as.base.InProcessServer == nil {
		as.base.InProcessServer = t.base.InProcessServer
	}
	return as, nil
}
