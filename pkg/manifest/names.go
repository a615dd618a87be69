package manifest

import (
	"regexp"
	"strings"
	"sync"
	"unicode"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/internal/wire"
)

// MaxID is the maximum length in bytes of an extension's id and of a capability's name.
const MaxID = 64

const maxServerName = 32 // bytes of an MCP server's name

const (
	idPattern         = `^[a-z][a-z0-9_-]*$`
	capabilityPattern = `^[a-z][a-z0-9_]*$`
	mcpToolPattern    = `^[A-Za-z0-9_.-]{1,128}$`
	headerPattern     = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$" // RFC 9110, token
)

var (
	idSyntax         = regexp.MustCompile(idPattern)
	capabilitySyntax = regexp.MustCompile(capabilityPattern)
	mcpToolSyntax    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(mcpToolPattern) })
	headerSyntax     = regexp.MustCompile(headerPattern)
)

// Reserved reports whether id may not be the id of an extension or the name of a bridge, because the agent (agent,
// browser, core, email, heartbeat, memory, telegram, whatsapp) or the mesh (rpc, cancel, ack, event, registry, control,
// log, bridge) uses it. Of a member's id, <id>.<server>, the id must not be reserved, and the server must not be rpc,
// cancel, ack or event, which follow an id in the mesh's subjects. Options.ReservedIDs has those that a host reserves.
func Reserved(id string) bool { return wire.Reserved(id) }

// hooks are the hooks that agents fire.
var hooks = []string{"before_message", "after_message", "before_tool_call", "after_tool_call"}

// name checks the names that follow the id's syntax: the extension's id and the names of its servers.
func (t *table) name(key, id string, limit int) bool {
	if idSyntax.MatchString(id) && len(id) <= limit {
		return true
	}
	if idSyntax.MatchString(id) {
		t.Fault(key, "%s has %d bytes; want at most %d", document.Show(id), len(id), limit)
		return false
	}
	example := ""
	if fixed := legalID(id, limit); fixed != "" {
		example = ", such as " + document.Show(fixed)
	}
	t.Fault(key, `%s is not a legal name; want a lower-case letter, then lower-case letters, digits, "_" or "-", at most %d bytes%s`,
		document.Show(id), limit, example)
	return false
}

// blank reports whether s consists only of white space.
func blank(s string) bool { return strings.TrimSpace(s) == "" }

// printable reports whether s is free of control characters.
func printable(s string) bool { return !strings.ContainsFunc(s, unicode.IsControl) }

// variable reports whether s can name an environment variable. Systems allow nearly every name, so only impossible
// ones are refused.
func variable(s string) bool {
	return s != "" && !strings.Contains(s, "=") && printable(s) && !strings.ContainsFunc(s, unicode.IsSpace)
}

// legalID converts an invalid id to a valid one; "" if that is not possible.
func legalID(s string, limit int) string {
	var b strings.Builder
	for _, r := range strings.ToLower(document.Clip(s, limit)) {
		switch {
		case r >= 'a' && r <= 'z', r == '_' && b.Len() > 0, r >= '0' && r <= '9' && b.Len() > 0:
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	return strings.TrimRight(b.String()[:min(b.Len(), limit)], "-")
}
