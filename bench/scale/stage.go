package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/bench/internal/proc"
	"github.com/extmesh/extmesh/bench/internal/wait"
	"github.com/extmesh/extmesh/internal/natsd"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// roleVar is the environment variable that makes this program one of the processes of the stage.
const roleVar = "SCALE_ROLE"

const prefix = mesh.Prefix(mesh.DefaultPrefix)

// patience is how long anything may take.
const patience = 5 * time.Minute

// stage is a server and a registry with an empty catalog, and the fleet.
type stage struct {
	bin, dir, url   string
	natsd, registry *proc.Process
	nc              *nats.Conn // of questions
	fleet           *fleet
	beating         func() // ends the beats
	stop            []func()
}

// newStage starts a server. The registry is started by whoever wants to see how long it takes.
func newStage(ctx context.Context, bin string) (*stage, error) {
	s := &stage{bin: bin}
	if err := s.set(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stage) set(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "extmesh-scale-"); err != nil {
		return err
	}
	s.stop = append(s.stop, func() { os.RemoveAll(s.dir) })
	config := filepath.Join(s.dir, "nats.conf")
	text := fmt.Sprintf("listen: \"127.0.0.1:-1\"\nports_file_dir: %q\njetstream { store_dir: %q }\nmax_payload: 4MB\n", s.dir, filepath.Join(s.dir, "store"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	if s.natsd, err = proc.Start(s.dir, "natsd", []string{roleVar + "=natsd", "NATS_CONFIG=" + config}, self); err != nil {
		return err
	}
	s.stop = append(s.stop, s.natsd.End)
	if s.url, err = awaitURL(ctx, s.dir); err != nil {
		return err
	}
	s.nc, err = s.connect("questions")
	return err
}

// awaitURL reads the file in which the server says where it listens.
func awaitURL(ctx context.Context, dir string) (url string, err error) {
	err = wait.Until(ctx, 10*time.Second, "the server listens", func() error {
		files, err := filepath.Glob(filepath.Join(dir, "*.ports"))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("no ports file: %v", err)
		}
		data, err := os.ReadFile(files[0])
		if err != nil {
			return err
		}
		var ports struct{ Nats []string }
		if err := json.Unmarshal(data, &ports); err != nil || len(ports.Nats) == 0 {
			return fmt.Errorf("%s: %v", data, err)
		}
		url = ports.Nats[0]
		return nil
	})
	return url, err
}

// play is main of a process of the stage.
func play(role string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	proc.UntilInputEnds(stop)
	switch role {
	case "natsd":
		return natsd.RunConfig(ctx, os.Getenv("NATS_CONFIG"), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	case "follower":
		return playFollower(ctx)
	}
	return fmt.Errorf("unknown %s %q", roleVar, role)
}

// close ends everything that was started, in reverse.
func (s *stage) close() {
	for i := len(s.stop) - 1; i >= 0; i-- {
		s.stop[i]()
	}
}

func (s *stage) connect(name string) (*nats.Conn, error) {
	nc, err := nats.Connect(s.url, nats.Name(name))
	if err == nil {
		s.stop = append(s.stop, nc.Close)
	}
	return nc, err
}

// populate makes the fleet. Nobody has heard of it yet.
func (s *stage) populate(extensions, tools int) error {
	nc, err := s.connect("fleet")
	if err != nil {
		return err
	}
	s.fleet, err = newFleet(nc, extensions, tools)
	if err != nil {
		return err
	}
	return nc.Flush()
}

// startRegistry starts the registry, which asks everybody to announce.
func (s *stage) startRegistry() (err error) {
	s.registry, err = proc.Start(s.dir, "registry", []string{"NATS_URL=" + s.url}, filepath.Join(s.bin, "registry"), "--log-level", "warn")
	if err == nil {
		s.stop = append(s.stop, s.registry.End)
	}
	return err
}

// status is what of the registry's own word is looked at.
type status struct {
	Revision   uint64         `json:"revision"`
	Leading    bool           `json:"leading"`
	Extensions map[string]int `json:"extensions"`
	Tools      int            `json:"tools"`
	Pending    int            `json:"pending"`
	Handshakes int            `json:"handshakes"`
	Traffic    struct {
		Beats  uint64 `json:"beats"`
		Writes uint64 `json:"writes"`
	} `json:"traffic"`
}

func (s *stage) status(ctx context.Context) (st status, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	m, err := s.nc.RequestWithContext(ctx, prefix.RegistryRPC(), []byte(`{"jsonrpc":"2.0","id":1,"method":"status"}`))
	if err != nil {
		return st, err
	}
	var answer struct {
		Result *status         `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return st, err
	}
	if answer.Result == nil {
		return st, fmt.Errorf("the registry says %s", answer.Error)
	}
	return *answer.Result, nil
}

// awaitStatus waits until the registry says what is wanted.
func (s *stage) awaitStatus(ctx context.Context, what string, cond func(status) bool) (st status, err error) {
	err = wait.Until(ctx, patience, what, func() (err error) {
		if st, err = s.status(ctx); err == nil && !cond(st) {
			err = fmt.Errorf("the registry says %+v", st)
		}
		return err
	})
	return st, err
}
