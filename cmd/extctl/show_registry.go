package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
)

// showRegistry prints the registry's status: its counters, the replicas it receives from, and what it refused.
func (s *session) showRegistry(ctx context.Context) error {
	status, err := s.request(ctx, s.prefix.RegistryRPC(), "the registry", "status", nil)
	if err != nil {
		return err
	}
	if s.json {
		return s.printJSON(struct {
			header
			Status json.RawMessage `json:"registry"`
		}{Status: status})
	}
	members, err := wire.Members(status)
	if err != nil {
		return fmt.Errorf("the registry's status: %w", err)
	}
	var tables []*table
	t := s.newTable("WHAT", "VALUE")
	for _, m := range members {
		switch m.Key {
		case "replicas":
			tables = append(tables, s.replicas(m.Value))
		case "refusals":
			tables = append(tables, s.refusals(m.Value))
		default:
			t.add(m.Key, plainValue(m.Value))
		}
	}
	if err := t.print(s.stdout); err != nil {
		return err
	}
	for _, t := range tables {
		if len(t.rows) == 0 {
			continue
		}
		fmt.Fprintln(s.stdout)
		if err := t.print(s.stdout); err != nil {
			return err
		}
	}
	return nil
}

// replicas is the table of the registry replicas. A value of another shape is left out: the registry may have another
// version, and --json prints everything.
func (s *session) replicas(value json.RawMessage) *table {
	var all []struct {
		Name, Instance, Version string
		Leading                 bool
	}
	t := s.newTable("REPLICA", "INSTANCE", "VERSION", "ROLE")
	if json.Unmarshal(value, &all) != nil {
		return t
	}
	for _, r := range all {
		role := "standby"
		if r.Leading {
			role = "leader"
		}
		t.add(r.Name, r.Instance, r.Version, role)
	}
	return t
}

// refusals is the table of what the registry refused recently, and why.
func (s *session) refusals(value json.RawMessage) *table {
	var all []struct {
		What, ID, Reason string
		Count            uint64
		Last             time.Time
	}
	t := s.newTable("REFUSED", "ID", "COUNT", "LAST", "REASON")
	if json.Unmarshal(value, &all) != nil {
		return t
	}
	for _, r := range all {
		t.add(r.What, r.ID, strconv.FormatUint(r.Count, 10), ago(r.Last), short(r.Reason, 160))
	}
	return t
}

// plainValue is a JSON value without its punctuation: text without quotes, an object as "key value, key value".
func plainValue(value json.RawMessage) string {
	text := ""
	if json.Unmarshal(value, &text) == nil {
		return text
	}
	members, err := wire.Members(value)
	if err != nil {
		return string(value)
	}
	var parts []string
	for _, m := range members {
		parts = append(parts, m.Key+" "+plainValue(m.Value))
	}
	return strings.Join(parts, ", ")
}
