package manifest

import (
	"regexp"
	"strings"

	"github.com/extmesh/extmesh/internal/document"
)

// shellVariable matches a value that only a shell would expand: $NAME alone, before a path, or in a header. A name is in
// capitals: a warning shows the value, which must not be a password such as $ecret. ${NAME} is a placeholder where those are
// replaced.
var shellVariable = regexp.MustCompile(`^((?:Bearer|Basic|Token) )?\$(\{)?([A-Z_][A-Z0-9_]*)\}?((/[^\s]*)?)$`)

// literal warns about a value that is written as for a shell, which does not read it. expands reports whether placeholders
// in it are replaced.
func (t transportTable) literal(key, value string, expands bool) {
	instead := ""
	switch m := shellVariable.FindStringSubmatch(value); {
	case m != nil && m[2] == "", m != nil && !expands && !strings.HasPrefix(m[3], "EXTENSION_"): // misplaced warns about those
		instead = m[1] + "${" + m[3] + "}" + m[4]
	case strings.HasPrefix(value, "~/") && !t.Loose: // a sidecar's is replaced
		instead = "${HOME}" + value[1:]
	default:
		return
	}
	if expands {
		t.Warn(key, "%s is taken literally, because no shell reads it; did you mean %s?", document.Show(value), document.Show(instead))
		return
	}
	t.Warn(key, "%s is taken literally, because no shell reads it; write the value out, or set a variable in transport.env to %s and read that", document.Show(value), document.Show(instead))
}

// assignment matches a variable in front of a command, as a shell reads it. Its value may be a token.
var assignment = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)

// oneProgram reports a command that contains arguments. It does not show them, because they may be tokens: bridges publish
// what is wrong with a manifest.
func (t transportTable) oneProgram(command string) {
	words := strings.Fields(command)
	if len(words) > 1 && assignment.MatchString(words[0]) {
		t.Fault(t.Key("command"), "is one program; its variables belong in env, and its arguments in args")
		return
	}
	if len(words) < 2 || strings.ContainsAny(words[0], `/\$`) { // a path may contain blanks
		return
	}
	t.Fault(t.Key("command"), "is one program, the rest belongs in args: command = %s, args = […]", document.Show(words[0]))
}
