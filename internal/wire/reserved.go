package wire

import (
	"slices"
	"strings"
)

// ReservedIDs are the names that the agent and the mesh use themselves (docs/protocol.md, "Words").
var ReservedIDs = []string{
	"agent", "browser", "core", "email", "heartbeat", "memory", "telegram", "whatsapp",
	"rpc", "cancel", "ack", "event", "registry", "control", "log", "bridge",
}

// Reserved reports whether id may not be the id of an extension: see ReservedIDs. Of a member's id, neither part may be
// reserved.
func Reserved(id string) bool {
	parent, member, _ := strings.Cut(id, ".")
	return slices.Contains(ReservedIDs, parent) || ReservedMember(member)
}

// ReservedMember reports whether name may not be the name of a member: it follows an id in the mesh's subjects.
func ReservedMember(name string) bool {
	return slices.Contains([]string{"rpc", "cancel", "ack", "event"}, name)
}
