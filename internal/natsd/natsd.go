// Package natsd runs a NATS server inside the process: the server of `extctl up` and of tests. JetStream is
// on, the settings are those of docs/operations.md ("Server settings"), and unless told otherwise it listens
// on 127.0.0.1 only.
//
//	srv, err := natsd.Start(natsd.Config{StoreDir: dir})
//	if err != nil {
//		return err
//	}
//	defer srv.Shutdown()
//	nc, err := nats.Connect("", srv.InProcess())
//
// One directory has one server: a second one is refused with a *storelock.LockedError that says who holds it,
// and storelock.Running tells other programs where it listens.
package natsd

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsd/storelock"
)

// Config says where a server listens and keeps its data. Only StoreDir is required.
type Config struct {
	Host       string       // default 127.0.0.1
	Port       int          // 0: 4222; -1: a free one
	StoreDir   string       // JetStream's files, the lock and the note of who runs; made if missing
	DontListen bool         // in-process connections only
	ServerName string       // default extmesh-<host name>
	Logger     *slog.Logger // the server's warnings and errors; nil discards them
}

// Server is a running NATS server.
type Server struct {
	srv  *server.Server
	lock *storelock.Lock
}

// startTimeout is how long a server may take until it accepts connections; recovery of a large store counts.
const startTimeout = 30 * time.Second

// Start starts a server and returns when it takes connections. The errors are a *storelock.LockedError if another
// process has the store, a *PortError if the port cannot be listened on, or what the server said.
func Start(cfg Config) (*Server, error) {
	if cfg.StoreDir == "" {
		return nil, errors.New("embedded NATS: no store directory given")
	}
	if err := os.MkdirAll(cfg.StoreDir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	held, err := storelock.Acquire(cfg.StoreDir)
	if err != nil {
		return nil, err
	}
	srv, err := start(options(cfg), cfg.Logger)
	if err != nil {
		return nil, errors.Join(err, held.Release())
	}
	s := &Server{srv: srv, lock: held}
	if err := held.Note(storelock.Info{PID: os.Getpid(), URL: s.ClientURL(), Since: time.Now().UTC()}); err != nil {
		s.Shutdown()
		return nil, err
	}
	return s, nil
}

// options are the settings that the mesh wants of a server; docs/operations.md explains each.
func options(cfg Config) *server.Options {
	if cfg.Host == "" {
		cfg.Host = "127.0.0.1"
	}
	if cfg.Port == 0 {
		cfg.Port = server.DEFAULT_PORT
	}
	if cfg.ServerName == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "local"
		}
		cfg.ServerName = "extmesh-" + host
	}
	return &server.Options{
		ServerName:       cfg.ServerName,
		Host:             cfg.Host,
		Port:             cfg.Port,
		DontListen:       cfg.DontListen,
		JetStream:        true,
		StoreDir:         cfg.StoreDir,
		SyncInterval:     10 * time.Second,
		MaxPayload:       4 << 20,
		PingInterval:     10 * time.Second, // a hung member of a queue group keeps its share of calls until it misses two
		MaxPingsOut:      2,
		WriteDeadline:    5 * time.Second,
		AuthTimeout:      5,
		LameDuckDuration: 30 * time.Second,
		NoSigs:           true, // signals belong to the program
	}
}

// start runs a server up to the point where it accepts connections.
func start(opts *server.Options, logger *slog.Logger) (*server.Server, error) {
	// The server itself reports a taken port as a fatal log line of its own wording; asking first gives the caller an
	// error to act on.
	if err := tryPort(opts); err != nil {
		return nil, err
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	log := &serverLog{logger: logger, fatal: make(chan error, 1)}
	srv.SetLoggerV2(log, false, false, false)
	srv.Start()
	if err := awaitReady(srv, log.fatal); err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		if taken := tryPort(opts); taken != nil { // in between: two that start at once do that to each other
			return nil, taken
		}
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	return srv, nil
}

// tryPort looks whether the port can be listened on; the error is a *PortError.
func tryPort(opts *server.Options) error {
	if opts.DontListen || opts.Port <= 0 {
		return nil
	}
	addr := net.JoinHostPort(opts.Host, strconv.Itoa(opts.Port))
	l, err := net.Listen("tcp", addr)
	if err == nil {
		err = l.Close()
	}
	if err != nil {
		return &PortError{Addr: addr, Err: err}
	}
	return nil
}

// awaitReady polls in short steps, because ReadyForConnections does not notice that the server gave up.
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

// PortError is a port that cannot be listened on, usually because another program does.
type PortError struct {
	Addr string // host:port
	Err  error
}

func (e *PortError) Error() string { return fmt.Sprintf("cannot listen on %s: %v", e.Addr, e.Err) }

// Unwrap is the listener's error.
func (e *PortError) Unwrap() error { return e.Err }

// ClientURL is the address for clients, nats://127.0.0.1:4222, or "" if the server does not listen.
func (s *Server) ClientURL() string {
	addr := s.srv.Addr()
	if addr == nil {
		return ""
	}
	return (&url.URL{Scheme: "nats", Host: addr.String()}).String()
}

// InProcess connects without a socket: nats.Connect("", s.InProcess()).
func (s *Server) InProcess() nats.Option { return nats.InProcessServer(s.srv) }

// Shutdown stops the server and returns when everything it ran has stopped and the store's lock is free.
// It may be called again.
func (s *Server) Shutdown() {
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
	// The lock ends with the process in any case, so there is nobody to tell about a failure.
	_ = s.lock.Release()
}
