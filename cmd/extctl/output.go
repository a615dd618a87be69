package main

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/health"
	"github.com/extmesh/extmesh/internal/plainyaml"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// header is the first member of every JSON object that extctl prints.
type header struct {
	SchemaVersion schemaVersion `json:"schema_version"`
}

// schemaVersion is always 1, also in its zero value.
type schemaVersion struct{}

// MarshalJSON writes the version.
func (schemaVersion) MarshalJSON() ([]byte, error) { return []byte("1"), nil }

// printJSON prints v on a line of its own.
func (a *app) printJSON(v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	return a.writeJSON(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// writeJSON writes JSON that may contain text from the mesh, and ends the line. On a terminal, characters that could control
// it are escaped; anywhere else the bytes are unchanged. With -o yaml it writes the same as YAML.
func (a *app) writeJSON(text []byte) error {
	var err error
	switch {
	case a.yaml:
		text, err = plainyaml.FromJSON(text)
	case daemon.IsTerminal(a.stdout):
		text = append(terminal.EscapeJSON(text), '\n')
	default:
		text = append(text[:len(text):len(text)], '\n')
	}
	if err == nil {
		_, err = a.stdout.Write(text)
	}
	return err
}

func (a *app) newTable(names ...string) *terminal.Table {
	t := &terminal.Table{Names: names, Width: terminal.Width(a.stdout)}
	if a.colour() {
		t.Paint = paintCell
	}
	return t
}

// colour reports whether to colour stdout: it is a terminal and NO_COLOR is not set.
func (a *app) colour() bool {
	return a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb" && daemon.IsTerminal(a.stdout)
}

// paintCell colours a state, and a number of instances if not all are ready.
func paintCell(column, cell string) string {
	switch ready, all, _ := strings.Cut(cell, "/"); {
	case column == "STATE":
		return paint(cell)
	case column == "INSTANCES" && ready != all:
		return yellow + cell + noColour
	}
	return cell
}

const (
	red      = "\x1b[31m"
	green    = "\x1b[32m"
	yellow   = "\x1b[33m"
	noColour = "\x1b[0m"
)

// paint colours a state, or a text that begins with one: green if ready, yellow in transition, red if it does not work.
func paint(state string) string {
	first, _, _ := strings.Cut(state, " ")
	colour := ""
	switch heartbeat.State(first) {
	case heartbeat.Ready:
		colour = green
	case heartbeat.Spawning, heartbeat.Restarting, heartbeat.Draining, health.Warn:
		colour = yellow
	case heartbeat.Failed, heartbeat.Lost, heartbeat.Gated, health.Error:
		colour = red
	default:
		return state
	}
	return colour + state + noColour
}
