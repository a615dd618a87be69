package wire

import (
	"fmt"
	"regexp"
	"strings"
)

// DefaultPrefix is the mesh's subject prefix when none is given.
const DefaultPrefix = "ext"

// Prefix is a checked subject prefix P; its methods build every subject of the mesh (docs/protocol.md,
// "Subjects"). Nothing else in the tree puts subjects together.
type Prefix string

var (
	prefixToken = regexp.MustCompile(`^[A-Za-z0-9-]+$`)
	idSyntax    = regexp.MustCompile(`^[a-z][a-z0-9_-]*$`)
)

// ParsePrefix checks a mesh prefix: 1 to 8 tokens of [A-Za-z0-9-]+ joined by dots, at most 64 bytes. No
// underscore, so that dots → "_" in bucket names stays one-to-one. The empty string means DefaultPrefix.
func ParsePrefix(s string) (Prefix, error) {
	if s == "" {
		return DefaultPrefix, nil
	}
	tokens := strings.Split(s, ".")
	if len(s) > 64 || len(tokens) > 8 {
		return "", fmt.Errorf("prefix %q: at most 8 tokens and 64 bytes", s)
	}
	for _, t := range tokens {
		if !prefixToken.MatchString(t) {
			return "", fmt.Errorf("prefix %q: token %q is not of [A-Za-z0-9-]+", s, t)
		}
	}
	return Prefix(s), nil
}

// Reserves reports whether a subject prefix is inside the mesh's own subjects.
func (p Prefix) Reserves(sp Prefix) bool {
	for _, own := range []string{"registry", "control", "log"} {
		if rest, ok := strings.CutPrefix(string(sp), string(p)+"."+own); ok && (rest == "" || rest[0] == '.') {
			return true
		}
	}
	return false
}

// CheckID checks an extension id, ^[a-z][a-z0-9_-]*$ and at most 64 bytes, or, where member is true, also
// the dotted id of a member: <id>.<server>.
func CheckID(id string, member bool) error {
	parts := []string{id}
	if member {
		parts = strings.SplitN(id, ".", 2)
	}
	for _, p := range parts {
		if len(p) > 64 || !idSyntax.MatchString(p) {
			return fmt.Errorf("id %q: want ^[a-z][a-z0-9_-]*$, at most 64 bytes", id)
		}
	}
	return nil
}

// RPC is SP.<id>.rpc: calls, answered by the queue group QueueGroup.
func (p Prefix) RPC(id string) string { return string(p) + "." + id + ".rpc" }

// InstanceRPC is SP.<id>.rpc.<instance>: calls to this instance only.
func (p Prefix) InstanceRPC(id, instance string) string { return p.RPC(id) + "." + instance }

// Cancel is SP.<id>.cancel.
func (p Prefix) Cancel(id string) string { return string(p) + "." + id + ".cancel" }

// Ack is SP.<id>.ack.<token>: a caller acknowledges the chunks of one answer. The token is the owner's choice; "*" makes
// it a subscription to all.
func (p Prefix) Ack(id, token string) string { return string(p) + "." + id + ".ack." + token }

// Event is SP.<id>.event: notifications out of the extension.
func (p Prefix) Event(id string) string { return string(p) + "." + id + ".event" }

// Announce is P.registry.announce.<id>.
func (p Prefix) Announce(id string) string { return p.registry("announce", id) }

// AnnounceRequest is P.registry.request: all instances announce themselves again.
func (p Prefix) AnnounceRequest() string { return string(p) + ".registry.request" }

// Heartbeat is P.registry.heartbeat.<id>.
func (p Prefix) Heartbeat(id string) string { return p.registry("heartbeat", id) }

// Shutdown is P.registry.shutdown.<id>: good-byes.
func (p Prefix) Shutdown(id string) string { return p.registry("shutdown", id) }

// Suspect is P.registry.suspect.<id>: a caller met no responders or a time-out.
func (p Prefix) Suspect(id string) string { return p.registry("suspect", id) }

// HostReport is P.registry.host.<bridge>: the inventory of a bridge.
func (p Prefix) HostReport(bridge string) string { return p.registry("host", bridge) }

// RegistryRPC is P.registry.rpc, the registry's own service.
func (p Prefix) RegistryRPC() string { return string(p) + ".registry.rpc" }

// CatalogEvents is P.registry.catalog, under which every catalog change is republished by key.
func (p Prefix) CatalogEvents() string { return string(p) + ".registry.catalog" }

// Control is P.control.<bridge>.
func (p Prefix) Control(bridge string) string { return string(p) + ".control." + bridge }

// Log is P.log.<id>: stderr of a bridged child, one structured record a line.
func (p Prefix) Log(id string) string { return string(p) + ".log." + id }

// Bucket is the catalog's KV bucket: the prefix with dots as "_", then "_catalog".
func (p Prefix) Bucket() string { return strings.ReplaceAll(string(p), ".", "_") + "_catalog" }

// QueueGroup is the queue group of every rpc subject. A subscriber without it would get a copy of each call.
const QueueGroup = "q"

func (p Prefix) registry(verb, id string) string {
	return string(p) + ".registry." + verb + "." + id
}

// maxReply is the longest reply subject that is answered; a server accepts lines of 4 KiB by default.
const maxReply = 1024

// MayAnswer reports whether a message may be sent to a reply subject, which the sender of a request has chosen. The mesh's
// own subjects are not allowed: a caller also chooses the id in the answer, and {"id":"x"} on the subject of heartbeats or
// shutdown notices would be one of x, sent with our permissions. Subjects that begin with "$" are not allowed either: such a
// message could be taken for a stream's delivery or, if empty, delete a stream. Neither are very long ones: with a reply subject of
// our own, the line would exceed the server's limit, and it would close our connection.
func (p Prefix) MayAnswer(reply string) bool {
	rest, ours := strings.CutPrefix(reply, string(p))
	return reply != "" && len(reply) <= maxReply && reply[0] != '$' && !(ours && strings.HasPrefix(rest, "."))
}

// MayAcknowledge reports whether a caller of subject, SP.<id>.rpc, may acknowledge a chunk on a reply subject: on what is
// called's own ack subject, SP.<id>.ack.<token>, or where MayAnswer allows it. NATS does not prevent anything else that the
// caller may publish.
func (p Prefix) MayAcknowledge(subject, reply string) bool {
	if p.MayAnswer(reply) {
		return true
	}
	for _, own := range []string{".registry.", ".control.", ".log."} {
		if strings.HasPrefix(subject, string(p)+own) {
			return false
		}
	}
	token, ok := strings.CutPrefix(reply, strings.TrimSuffix(subject, ".rpc")+".ack.")
	return ok && token != "" && !strings.ContainsAny(token, ".*> \t\r\n")
}
