package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/door"
	"github.com/extmesh/extmesh/internal/rawio"
)

// httpFlags are the flags of mcp that concern HTTP.
type httpFlags struct {
	addr      string
	tokens    string
	hosts     []string
	origins   []string
	cert, key string
	rate      int
	drain     time.Duration
	admin     string
}

func (f *httpFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.addr, "http", "", "serve any number of clients over HTTP on `ADDR` instead: host:port, :port on this machine, or unix:PATH")
	fs.StringVar(&f.tokens, "tokens", "", "accept only clients with a bearer token of `FILE`; required unless ADDR is on this machine")
	fs.StringArrayVar(&f.hosts, "allow-host", nil, "a host `NAME` by which clients reach the server; can be repeated")
	fs.StringArrayVar(&f.origins, "allow-origin", nil, "web pages of `ORIGIN` may use the server: https://app.example.com or https://*.example.com; can be repeated")
	fs.StringVar(&f.cert, "http-cert", "", "TLS certificate `FILE` of the server")
	fs.StringVar(&f.key, "http-key", "", "TLS key `FILE` of the server")
	fs.IntVar(&f.rate, "rate", 0, "limit of requests per second of one token, or of all clients together if there are no tokens, as a `NUMBER`; four times as many can come at once (default 50, none if ADDR is on this machine)")
	fs.StringVar(&f.admin, "admin", "", "serve /healthz, /readyz and /metrics on `ADDR`: host:port")
	fs.DurationVar(&f.drain, "drain", 30*time.Second, "how long calls may still run when the server stops, as a `DURATION`")
}

// listen checks the flags and opens the listener.
func (f *httpFlags) listen(logger *slog.Logger) (l net.Listener, o door.HTTPOptions, url string, err error) {
	network, local := "tcp", true
	addr, unix := strings.CutPrefix(f.addr, "unix:")
	if unix {
		network = "unix"
	} else if addr, local, err = localAddr(f.addr); err != nil {
		return nil, o, "", err
	}
	if !local && f.tokens == "" {
		return nil, o, "", daemon.UsageError{
			Err:  fmt.Errorf("--http %s can be reached from other machines, so clients need tokens", f.addr),
			Hint: "pass --tokens FILE (extctl mcp token NAME makes an entry), or listen on 127.0.0.1",
		}
	}
	o = door.HTTPOptions{Drain: cmp.Or(f.drain, -1), Rate: f.rate}
	if o.Hosts, o.Origins, err = f.allowed(); err != nil {
		return nil, o, "", err
	}
	switch {
	case f.rate < 0:
		return nil, o, "", usage("--rate %d: want a positive number", f.rate)
	case f.drain < 0:
		return nil, o, "", usage("--drain %v: want a positive duration", f.drain)
	}
	if f.rate == 0 && !local {
		o.Rate = defaultRate
	}
	o.AnyHost = unix || !local && len(f.hosts) == 0 // a web page gains nothing by DNS rebinding: it has no token
	if o.TLS, err = f.tls(); err != nil {
		return nil, o, "", err
	}
	if f.tokens != "" {
		if o.Tokens, err = door.LoadTokens(f.tokens, logger); err != nil {
			return nil, o, "", daemon.UsageError{Err: fmt.Errorf("--tokens: %w", err)}
		}
	}
	if unix {
		l, err = listenUnix(addr)
		return l, o, "unix:" + addr, err
	}
	if l, err = net.Listen(network, addr); err != nil {
		return nil, o, "", &failure{code: exitOther, err: err, hint: "choose another address with --http"}
	}
	scheme := map[bool]string{false: "http", true: "https"}[o.TLS != nil]
	return l, o, scheme + "://" + l.Addr().String() + "/mcp", nil
}

// allowed returns the hosts and origins in the form in which requests are compared with them.
func (f *httpFlags) allowed() (hosts, origins []string, err error) {
	for _, host := range f.hosts {
		name := strings.ToLower(strings.Trim(host, "[]"))
		if net.ParseIP(name) == nil && (name == "" || strings.ContainsAny(name, "/:*[] ")) {
			return nil, nil, usage("--allow-host %q: want a name or an address without scheme and port, such as mcp.example.com", host)
		}
		hosts = append(hosts, name)
	}
	for _, origin := range f.origins {
		u, err := url.Parse(strings.ToLower(origin))
		if err != nil || u.Scheme == "" || u.Hostname() == "" || u.Scheme+"://"+u.Host != strings.ToLower(origin) || strings.Contains(strings.TrimPrefix(u.Host, "*."), "*") {
			return nil, nil, usage("--allow-origin %q: want scheme and host without a path, such as https://app.example.com or https://*.example.com", origin)
		}
		if port := u.Port(); u.Scheme == "https" && port == "443" || u.Scheme == "http" && port == "80" { // browsers leave it out
			u.Host = strings.TrimSuffix(u.Host, ":"+port)
		}
		origins = append(origins, u.String())
	}
	return hosts, origins, nil
}

// localAddr completes an address, and reports whether only this machine can reach it.
func localAddr(s string) (addr string, local bool, err error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", false, usage("--http %q: want host:port, :port or unix:PATH", s)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	ip := net.ParseIP(host)
	return net.JoinHostPort(host, port), host == "localhost" || ip != nil && ip.IsLoopback(), nil
}

// listenUnix listens on a socket that only this user can connect to. A socket that no process listens on is replaced.
func listenUnix(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if info, statErr := os.Lstat(path); err != nil && statErr == nil && info.Mode()&fs.ModeSocket != 0 {
		conn, dialErr := net.Dial("unix", path)
		switch {
		case dialErr == nil:
			_ = conn.Close()
			return nil, fail(exitOther, "another process listens on %s", path)
		case runtime.GOOS != "windows" && !errors.Is(dialErr, syscall.ECONNREFUSED): // another user's, for example
			return nil, fail(exitOther, "the socket %s is not replaced: %w", path, dialErr)
		}
		_ = os.Remove(path)
		l, err = net.Listen("unix", path)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (f *httpFlags) tls() (*tls.Config, error) {
	if f.cert == "" && f.key == "" {
		return nil, nil
	}
	c := &certificate{cert: f.cert, key: f.key}
	if _, err := c.get(nil); err != nil {
		return nil, usage("--http-cert and --http-key: %w", err)
	}
	return &tls.Config{GetCertificate: c.get, MinVersion: tls.VersionTLS12}, nil
}

// defaultRate is the number of requests per second of one token, of a server that other machines can reach.
const defaultRate = 50

// certificate is a certificate that is read again when its file changes, since certificates are renewed while the server
// runs.
type certificate struct {
	cert, key string

	mu      sync.Mutex
	pair    *tls.Certificate
	changed time.Time // of the file
}

// get returns the certificate. If a new one cannot be read, it returns the one before, until both files are there.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	info, err := os.Stat(c.cert)
	if err == nil && c.pair != nil && info.ModTime().Equal(c.changed) {
		return c.pair, nil
	}
	if err == nil {
		var pair tls.Certificate
		if pair, err = tls.LoadX509KeyPair(c.cert, c.key); err == nil {
			c.pair, c.changed = &pair, info.ModTime()
		}
	}
	if c.pair != nil {
		return c.pair, nil
	}
	return nil, err
}

// serve serves a Door on standard input and output, or over HTTP.
func (l *mcpLink) serve(ctx context.Context, f *httpFlags) error {
	a, d := l.app, l.door
	if f.addr == "" {
		return l.serveStdio(ctx)
	}
	listener, o, url, err := f.listen(l.logger)
	if err != nil {
		return err
	}
	o.Dial = l.dial
	if _, err := fmt.Fprintln(a.stdout, url); err != nil {
		return errors.Join(err, listener.Close())
	}
	return d.ServeHTTP(ctx, listener, o)
}

// serveStdio serves a Door on standard input and output.
func (l *mcpLink) serveStdio(ctx context.Context) error {
	in, out := l.app.stdin, l.app.stdout
	stdin, ok := in.(*os.File)
	stdout, ok2 := out.(*os.File)
	if ok && ok2 {
		var restore func()
		in, out, restore = rawio.Stdio(stdin, stdout)
		defer restore()
	}
	return l.door.ServeStdio(ctx, in, out)
}

// readProfiles reads the profiles of a file. The one named default is for clients that choose none.
func readProfiles(path string) (map[string]door.ViewOptions, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	profiles, err := config.ParseProfiles(path, data)
	if err != nil {
		return nil, err
	}
	out := map[string]door.ViewOptions{}
	for name, p := range profiles {
		out[name] = door.ViewOptions{
			Only: p.Only, Exclude: p.Exclude, ReadOnly: p.ReadOnly, Names: door.NameMode(p.Names), NameLimit: p.NameLimit,
			Tools: door.ToolMode(p.Tools), SearchOver: p.SearchOver, Instructions: p.Instructions,
		}
	}
	return out, nil
}

func mcpTokenCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "token NAME",
		Short: "Make a bearer token for an MCP client",
		Long: `Make a bearer token for the MCP client NAME and print it once, with the entry for the file of --tokens, which has
only its hash.`,
		Example: "  extctl mcp token ada",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			token := "ext_" + rand.Text()
			sum := sha256.Sum256([]byte(token))
			entry := fmt.Sprintf("tokens:\n  %s:\n    sha256: %s\n", args[0], hex.EncodeToString(sum[:]))
			if _, err := config.ParseTokens("the entry", []byte(entry)); err != nil {
				return daemon.UsageError{Err: err}
			}
			if a.json {
				return a.printObject(member{"name", args[0]}, member{"token", token}, member{"sha256", hex.EncodeToString(sum[:])})
			}
			_, err := fmt.Fprintf(a.stdout, "%s\n\nThe entry for the file of --tokens, which must have the mode 0600:\n\n%s", token, entry)
			return err
		},
	}
}
