package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/health"
	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

func statusCmd(a *app) *cobra.Command {
	var format outputFormat
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which mesh this is, its state, and what is wrong with the commands that help",
		Long: `Show which mesh extctl uses and why, the registries, the number of bridges and extensions in each state, and what is
wrong, most severe first, each with a command that explains or fixes it.

The exit code is 0 if everything works, 10 if something does not (an error; warnings are about what starts, restarts or
drains), 13 if there is no NATS or no catalog, and 14 if NATS refuses the user.`,
		Example: "  extctl status\n  extctl status --json | jq .problems",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := format.choose(a, objectFormats); err != nil {
				return err
			}
			target, err := a.nats.Resolve()
			if err != nil {
				return err
			}
			st := statusJSON{Mesh: meshOf(target, a.nats.Prefix)}
			err = a.withMesh(cmd, requestTimeout, func(ctx context.Context, s *session) error {
				st.Mesh.Server = withoutUser(s.nc.ConnectedUrl())
				return st.read(ctx, s)
			})
			if err != nil {
				if format != formatJSON {
					fmt.Fprintf(a.stdout, "Mesh:        %s\n", terminal.Clean(st.Mesh.String()))
				}
				return err
			}
			return st.print(a, format)
		},
	}
	format.add(cmd, objectFormats)
	return cmd
}

// statusJSON is the output of status.
type statusJSON struct {
	header
	Mesh meshJSON `json:"mesh"`
	revisionJSON
	Registry   *registryJSON    `json:"registry"` // nil if none answers this user
	Hosts      map[string]int   `json:"hosts"`    // bridges, by state
	Extensions map[string]int   `json:"extensions"`
	Tools      int              `json:"tools"`
	Problems   []health.Problem `json:"problems"`

	denied bool // NATS does not allow this user requests to the registry
}

// meshJSON is the mesh that the command uses, and where its address comes from.
type meshJSON struct {
	Prefix  string   `json:"prefix"`
	Server  string   `json:"server"`
	User    string   `json:"user"` // "" if its name is not known
	From    string   `json:"from"`
	NotUsed []string `json:"not_used"` // other addresses in the environment
}

// registryJSON is a part of the registry's status.
type registryJSON struct {
	Leader    string             `json:"leader"`
	Replicas  []registry.Replica `json:"replicas"`
	JetStream string             `json:"jetstream"`
}

func meshOf(t daemon.Target, prefix string) meshJSON {
	m := meshJSON{Prefix: prefix, Server: withoutUser(t.Addr()), From: t.Source, NotUsed: list(t.NotUsed)}
	if users := t.Users(); len(users) > 0 {
		m.User = users[0]
	}
	return m
}

// withoutUser removes the user and the password from addresses.
func withoutUser(addresses string) string {
	all := strings.Split(addresses, ",")
	for i, a := range all {
		if scheme, rest, ok := strings.Cut(a, "://"); ok {
			all[i] = scheme + "://" + rest[strings.LastIndex(rest, "@")+1:]
		}
	}
	return strings.Join(all, ",")
}

func (m meshJSON) String() string {
	text := m.Prefix + " on " + m.Server
	if m.User != "" {
		text += " as " + m.User
	}
	text += " (from " + m.From + ")"
	if len(m.NotUsed) > 0 {
		text += ", not " + strings.Join(m.NotUsed, " or ")
	}
	return text
}

// read requests the status of the registry and reads the catalog. Without a registry, the catalog is enough.
func (st *statusJSON) read(ctx context.Context, s *session) error {
	var (
		wg               sync.WaitGroup
		v                health.View
		err, hostsErr    error
		registryErr      error
		revision         revisionJSON
		status           json.RawMessage
		hosts            *mesh.Catalog
		statusCtx, abort = context.WithTimeout(ctx, registryProbe)
	)
	defer abort()
	wg.Go(func() {
		status, registryErr = s.request(statusCtx, s.prefix.RegistryRPC(), "the registry", "status", nil)
	}) // the three end with ctx
	wg.Go(func() { hosts, hostsErr = s.load(ctx, mesh.CatalogOptions{}, wire.KindHost) })
	wg.Go(func() { v.Extensions, revision, err = readOutline(ctx, s) })
	wg.Wait()
	if err != nil {
		return err
	}
	if registryErr == nil {
		v.Registry = new(registry.Status)
		if json.Unmarshal(status, v.Registry) != nil {
			v.Registry = nil
		}
	}
	if hostsErr == nil {
		v.Hosts = hosts.Hosts()
	}
	v.Age, v.Server = revision.age(), st.Mesh.Server
	st.revisionJSON = revision
	v.Denied = errors.Is(registryErr, nats.ErrPermissionViolation)
	st.denied = v.Denied
	st.count(v)
	st.Problems = v.Problems()
	if hostsErr != nil {
		st.Problems = append([]health.Problem{{Level: health.Error, Kind: "bridge", Message: "the bridges cannot be read from the catalog: " + hostsErr.Error(), Command: "extctl hosts"}}, st.Problems...)
	}
	return nil
}

// count sets everything but the problems.
func (st *statusJSON) count(v health.View) {
	st.Hosts, st.Extensions = map[string]int{}, map[string]int{}
	if r := v.Registry; r != nil {
		st.Registry = &registryJSON{r.Leader, r.Replicas, r.JetStream}
		if v.Hosts == nil {
			st.Hosts = byState(r.Hosts)
		}
	}
	for _, h := range v.Hosts {
		if h.State == heartbeat.Lost && h.Reason == wire.ReasonStopped { // as the registry counts
			h.State = heartbeat.Shutdown
		}
		st.Hosts[string(h.State)]++
	}
	for _, e := range v.Extensions {
		st.Extensions[string(e.State)]++
		st.Tools += e.Tools
	}
}

func byState(counts map[heartbeat.State]int) map[string]int {
	out := map[string]int{}
	for state, n := range counts {
		out[string(state)] = n
	}
	return out
}

func (st statusJSON) print(a *app, format outputFormat) error {
	errorsFound := slices.ContainsFunc(st.Problems, func(p health.Problem) bool { return p.Level == health.Error })
	var err error
	if format == formatJSON {
		err = a.printJSON(st)
	} else {
		err = st.printText(a, format == formatWide)
	}
	if err == nil && errorsFound {
		return silentError(exitUnavailable)
	}
	return err
}

// fewStatusProblems is how many problems status prints as text.
const fewStatusProblems = 20

func (st statusJSON) printText(a *app, all bool) error {
	w := bufio.NewWriter(a.stdout)
	fmt.Fprintf(w, "Mesh:        %s\n", terminal.Clean(st.Mesh.String()))
	registry := st.Registry.String()
	if st.denied {
		registry = "this user may not send requests to it"
	}
	fmt.Fprintf(w, "Registry:    %s; the catalog %s\n", terminal.Clean(registry), health.Age(st.age()))
	fmt.Fprintf(w, "Bridges:     %s\n", countText(st.Hosts))
	fmt.Fprintf(w, "Extensions:  %s; %s\n\n", countText(st.Extensions), words.Plural(st.Tools, "tool"))
	if len(st.Problems) == 0 {
		fmt.Fprintln(w, "No problems.")
	}
	shown := st.Problems
	if !all {
		shown = shown[:min(len(shown), fewStatusProblems)]
	}
	for _, p := range shown {
		level := p.Level
		if a.colour() {
			level = paint(level)
		}
		fmt.Fprintf(w, "%s%s  %s\n", level, strings.Repeat(" ", len(health.Error)-len(p.Level)), terminal.Clean(p.Message))
		if p.Command != "" {
			fmt.Fprintf(w, "       %s\n", terminal.Clean(p.Command))
		}
	}
	if n := len(st.Problems) - len(shown); n > 0 {
		fmt.Fprintf(w, "\n%d more: extctl status -o wide\n", n)
	}
	return w.Flush()
}

func (r *registryJSON) String() string {
	if r == nil {
		return "none answers"
	}
	leader := ""
	var standbys []string
	for _, p := range r.Replicas {
		if p.Leading {
			leader = cmp.Or(leader, p.Name)
		} else {
			standbys = append(standbys, p.Name)
		}
	}
	text := leader + " leads"
	switch n := len(standbys); {
	case leader == "" && n == 0:
		return "none leads"
	case leader == "": // the lease may still contain a name
		return "none leads; running: " + words.Some(standbys, 5)
	case n == 0:
		return text + ", no standby"
	case n == 1:
		return text + ", standby " + standbys[0]
	}
	return text + ", standbys " + words.Some(standbys, 5)
}

// countText is "12 ready, 1 lost", by state; "" is the state of a bridge that has never answered.
func countText(counts map[string]int) string {
	var parts []string
	for _, state := range append(slices.Clone(listedStates), "") {
		if n := counts[state]; n > 0 {
			parts = append(parts, strconv.Itoa(n)+" "+cmp.Or(state, "never answered"))
		}
	}
	for _, state := range slices.Sorted(maps.Keys(counts)) { // of a newer version
		if state != "" && !slices.Contains(listedStates, state) {
			parts = append(parts, strconv.Itoa(counts[state])+" "+terminal.Clean(state))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}
