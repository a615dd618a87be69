package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// registryProbe is the time limit of the request for the reason why there is no catalog.
const registryProbe = time.Second

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
	var status struct{ Name, Version, JetStream string }
	if requestErr != nil || json.Unmarshal(raw, &status) != nil {
		f.err = &reworded{fmt.Sprintf("no catalog: no registry runs on this mesh (NATS at %s, prefix %s)", s.nc.ConnectedUrlRedacted(), s.prefix), err}
		f.hint = "start one with `registry --server URL`, or run a whole mesh with `extctl up`; is --prefix right?"
		return f
	}
	who := terminal.Clean(strings.TrimSpace(status.Name + " " + status.Version))
	switch {
	case status.JetStream == "" || status.JetStream == "ok":
		f.err = &reworded{fmt.Sprintf("no catalog: a registry runs (%s) and has not created it yet", who), err}
		f.hint = "try again in a few seconds; `extctl show registry` has the registry's status"
	case strings.Contains(status.JetStream, "denied"):
		f.err = &reworded{fmt.Sprintf("no catalog: a registry runs (%s), but NATS does not let it use JetStream: %s", who, status.JetStream), err}
		f.hint = "the registry's NATS user lacks a permission; docs/operations.md lists what each role needs"
	default:
		f.err = &reworded{fmt.Sprintf("no catalog: a registry runs (%s), but JetStream is not available on this server: %s", who, status.JetStream), err}
		f.hint = "start the NATS server with JetStream: nats-server -js, or a jetstream block in its configuration"
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
	s.note("extctl: connected to NATS at %s; waiting for a catalog: %s", s.nc.ConnectedUrlRedacted(), terminal.Clean(strings.TrimPrefix(err.Error(), "no catalog: ")))
}
