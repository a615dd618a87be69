// Package natsd runs a NATS server inside the process, for `extctl up` and for tests. JetStream is enabled, the
// settings are those of docs/operations.md ("Server settings"), and by default the server listens on 127.0.0.1 only.
//
//	srv, err := natsd.Start(natsd.Config{StoreDir: dir})
//	if err != nil {
//		return err
//	}
//	defer srv.Shutdown()
//	nc, err := nats.Connect("", srv.InProcess())
//
// A directory has at most one server: a second one is refused with a *storelock.LockedError that names the process
// with the lock, and storelock.Running returns the address of the running one.
package natsd

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"github.com/extmesh/extmesh/internal/natsd/storelock"
)

// Config sets where a server listens and stores its data. Only StoreDir is required.
type Config struct {
	Host     string // default 127.0.0.1
	Port     int    // 0: 4222; -1: a free one
	StoreDir string // for JetStream's files, the lock and the note about its holder; created if missing
	// RequirePassword makes the server refuse clients without a password, which Start chooses. Programs of the same user
	// find it with storelock.Running.
	RequirePassword bool
	Logger          *slog.Logger // the server's warnings and errors; nil discards them
}

// Server is a running NATS server.
type Server struct {
	srv  *server.Server
	lock *storelock.Lock
	info storelock.Info
}

// startTimeout is how long a server may take to accept connections, including the recovery of a large store.
const startTimeout = 30 * time.Second

// Start starts a server and returns when it accepts connections. It returns a *storelock.LockedError if another
// process uses the store, a *PortError if the port is not free, or the server's error.
func Start(cfg Config) (*Server, error) {
	if cfg.StoreDir == "" {
		return nil, errors.New("embedded NATS: the store directory is missing")
	}
	if err := os.MkdirAll(cfg.StoreDir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	held, err := storelock.Acquire(cfg.StoreDir)
	if err != nil {
		return nil, err
	}
	opts := options(cfg)
	s := &Server{lock: held, info: storelock.Info{PID: os.Getpid(), Since: time.Now().UTC()}}
	if cfg.RequirePassword {
		s.info.Password = rand.Text()
		opts.CustomClientAuthentication = password(s.info.Password)
	}
	if s.srv, err = start(opts, cfg.Logger); err != nil {
		return nil, errors.Join(err, held.Release())
	}
	s.info.URL = s.ClientURL()
	if err := held.Note(s.info); err != nil {
		s.Shutdown()
		return nil, err
	}
	return s, nil
}

// password accepts clients that send it. (The server's own options would do the same, and warn about a password that is
// not hashed. A hash costs every connection tens of milliseconds, and protects a password that is kept for long.)
type password string

// Check is called by the server for each connection.
func (p password) Check(c server.ClientAuthentication) bool {
	got := c.GetOpts()
	return got.Username == storelock.User && subtle.ConstantTimeCompare([]byte(got.Password), []byte(p)) == 1
}

// options returns the server settings for the mesh; docs/operations.md explains each.
func options(cfg Config) *server.Options {
	if cfg.Host == "" {
		cfg.Host = "127.0.0.1"
	}
	if cfg.Port == 0 {
		cfg.Port = server.DEFAULT_PORT
	}
	host, err := os.Hostname()
	if err != nil {
		host = "local"
	}
	return &server.Options{
		ServerName:       "extmesh-" + host,
		Host:             cfg.Host,
		Port:             cfg.Port,
		JetStream:        true,
		StoreDir:         cfg.StoreDir,
		SyncInterval:     10 * time.Second,
		MaxPayload:       4 << 20,
		PingInterval:     2 * time.Second, // see deploy/nats/settings.conf
		MaxPingsOut:      2,
		WriteDeadline:    30 * time.Second,
		AuthTimeout:      5,
		LameDuckDuration: 30 * time.Second,
		NoSigs:           true, // the program handles signals
	}
}

// start runs a server until it accepts connections.
func start(opts *server.Options, logger *slog.Logger) (*server.Server, error) {
	addr := net.JoinHostPort(opts.Host, strconv.Itoa(opts.Port))
	if opts.Port > 0 && listens(addr) { // the usual case, without the error in the log and a start of JetStream
		return nil, &PortError{Addr: addr, Err: syscall.EADDRINUSE}
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	log := &serverLog{logger: logger, fatal: make(chan error, 1), refused: rate.Sometimes{Interval: time.Minute}}
	srv.SetLoggerV2(log, false, false, false)
	srv.Start()
	if err := awaitReady(srv, log.fatal); err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "listen" {
			return nil, &PortError{Addr: addr, Err: op}
		}
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	return srv, nil
}

// listens reports whether a program listens at an address. It connects to find out: a listener of its own would be in
// the way of another server that starts at the same time.
func listens(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// awaitReady polls at short intervals, because ReadyForConnections does not notice that the server gave up.
func awaitReady(srv *server.Server, fatal <-chan error) error {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		select {
		case err := <-fatal:
			return err
		default:
		}
		if srv.ReadyForConnections(50 * time.Millisecond) {
			if !srv.JetStreamEnabled() {
				return errors.New("JetStream did not start")
			}
			return nil
		}
	}
	return fmt.Errorf("not ready for connections after %v", startTimeout)
}

// PortError reports a port that cannot be listened on, usually because another program uses it.
type PortError struct {
	Addr string // host:port
	Err  error
}

func (e *PortError) Error() string { return fmt.Sprintf("cannot listen on %s: %v", e.Addr, e.Err) }

// Unwrap returns the listener's error.
func (e *PortError) Unwrap() error { return e.Err }

// ClientURL returns the address for clients, nats://127.0.0.1:4222.
func (s *Server) ClientURL() string {
	return (&url.URL{Scheme: "nats", Host: s.srv.Addr().String()}).String()
}

// InProcess returns the option that connects without a socket: nats.Connect("", s.InProcess()).
func (s *Server) InProcess() nats.Option {
	return func(o *nats.Options) error {
		if s.info.Password != "" {
			o.User, o.Password = storelock.User, s.info.Password
		}
		return nats.InProcessServer(s.srv)(o)
	}
}

// Shutdown stops the server and returns when all of its goroutines have ended and the store is unlocked. It may be
// called again.
func (s *Server) Shutdown() {
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
	// The lock ends with the process in any case, so a failure can be ignored.
	_ = s.lock.Release()
}
