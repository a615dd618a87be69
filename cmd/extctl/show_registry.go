package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/health"
	"github.com/extmesh/extmesh/internal/registry"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// showRegistry prints the registry's status: its counters, the replicas it receives from, and what it refused.
func showRegistry(ctx context.Context, s *session) error {
	raw, err := s.request(ctx, s.prefix.RegistryRPC(), "the registry", "status", nil)
	if err != nil {
		return err
	}
	if s.json {
		return s.printJSON(struct {
			header
			Status json.RawMessage `json:"registry"`
		}{Status: raw})
	}
	var r registry.Status
	if err := json.Unmarshal(raw, &r); err != nil {
		f := fail(exitOther, "the registry's status cannot be read; has it another version? %w", err)
		f.hint = "extctl show registry --json prints it as it is"
		return f
	}
	if err := printRegistry(s.app, r); err != nil {
		return err
	}
	for _, t := range []*terminal.Table{replicaTable(s.app, r.Replicas), refusalTable(s.app, r.Recent)} {
		if len(t.Rows) == 0 {
			continue
		}
		fmt.Fprintln(s.stdout)
		if err := t.Print(s.stdout); err != nil {
			return err
		}
	}
	return nil
}

func printRegistry(a *app, r registry.Status) error {
	w := bufio.NewWriter(a.stdout)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-12s %s\n", name+":", terminal.Clean(fmt.Sprintf(format, args...)))
	}
	line("Registry", "%s", strings.TrimSpace(r.Name+" "+r.Version))
	switch {
	case r.Leading:
		line("Role", "leader, epoch %d", r.Epoch)
	case r.Leader == "":
		line("Role", "standby; no registry leads")
	default:
		line("Role", "standby; %s leads", r.Leader)
	}
	if !r.Started.IsZero() {
		line("Started", "%s (%s)", r.Started.Local().Format(time.DateTime), words.Ago(r.Started))
	}
	line("Catalog", "revision %d of %s; it %s", r.Revision, r.CatalogID, health.Age(time.Duration(r.AgeMS)*time.Millisecond))
	line("JetStream", "%s", r.JetStream)
	line("Extensions", "%s; %s, %s", countText(byState(r.Extensions)), words.Plural(r.Tools, "tool"), words.Plural(r.Skills, "skill"))
	line("Instances", "%s", countText(byState(r.Instances)))
	line("Bridges", "%s", countText(byState(r.Hosts)))
	line("Received", "%d announcements, %d heartbeats (%.1f ms old on average), %d reports from callers", r.Traffic.Announces, r.Traffic.Beats, r.Traffic.BeatLagMS, r.Traffic.Suspects)
	line("Written", "%d documents in %d batches; %d writes failed", r.Traffic.Writes, r.Traffic.Batches, r.Traffic.Failures)
	line("Waiting", "%s to write, %s", words.Plural(r.Pending, "document"), words.Plural(r.Handshakes, "handshake"))
	var refused []string
	for _, what := range slices.Sorted(maps.Keys(r.Refused)) {
		refused = append(refused, fmt.Sprintf("%s %d", what, r.Refused[what]))
	}
	if len(refused) > 0 {
		line("Refused", "%s", strings.Join(refused, ", "))
	}
	return w.Flush()
}

func byState(counts map[heartbeat.State]int) map[string]int {
	out := map[string]int{}
	for state, n := range counts {
		out[string(state)] = n
	}
	return out
}

// replicaTable is the table of the registry replicas.
func replicaTable(a *app, all []registry.Replica) *terminal.Table {
	t := a.newTable("REPLICA", "INSTANCE", "VERSION", "ROLE")
	for _, r := range all {
		role := "standby"
		if r.Leading {
			role = "leader"
		}
		t.Add(r.Name, r.Instance, r.Version, role)
	}
	return t
}

// refusalTable is the table of what the registry refused recently, and why.
func refusalTable(a *app, all []registry.Refusal) *terminal.Table {
	t := a.newTable("REFUSED", "ID", "COUNT", "LAST", "REASON")
	t.Limit = 160
	for _, r := range all {
		t.Add(r.What, r.ID, strconv.FormatUint(r.Count, 10), words.Ago(r.Last), r.Reason)
	}
	return t
}
