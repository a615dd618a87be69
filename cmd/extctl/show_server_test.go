package main

import (
	"encoding/json"
	"testing"

	"github.com/extmesh/extmesh/internal/wire"
)

func TestServerText(t *testing.T) {
	s := &wire.Server{
		ProtocolVersion: "2025-11-25", Info: json.RawMessage(`{"name":"files","version":"2.1"}`),
		Capabilities: json.RawMessage(`{"prompts":{},"resources":{},"logging":{}}`),
		Lists:        wire.Lists{Resources: &wire.Listing{Count: 7}, Templates: &wire.Listing{Count: 2}},
	}
	if got, want := serverText(s), "files 2.1, MCP 2025-11-25, prompts, resources: 7, resource templates: 2, logging"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
