package manifest

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/internal/nearest"
)

// MaxHandshakeTimeout is the longest transport.handshake_timeout.
const MaxHandshakeTimeout = 5 * time.Minute

// fields lists the transports to which each field of [transport] belongs, serverFields the same for [mcp_servers.*].
var (
	fields = []field{
		{"command", "stdio"}, {"args", "stdio"}, {"env", "stdio"}, {"handshake_timeout", "stdio"},
		{"subject_prefix", "nats"},
		{"url", "http"}, {"headers", "http"},
		{"dialect", "stdio http"},
	}
	serverFields = []field{
		{"command", "stdio"}, {"args", "stdio"}, {"env", "stdio"}, {"cwd", "stdio"}, {"handshake_timeout", "stdio"},
		{"url", "streamable_http"}, {"headers", "streamable_http"},
	}
)

type field struct{ key, types string }

func (f field) belongs(kind string) bool { return slices.Contains(strings.Fields(f.types), kind) }

// transportTable reads [transport], and what a server in [mcp_servers] has in common with it.
type transportTable struct{ *table }

// kind reads the transport of a table, given by either of two keys, and reports the fields that belong to another
// transport. It returns "" if there is no valid one.
func (t transportTable) kind(a, b string, legal []string, fields []field) string {
	s, key := t.either(a, b)
	if !t.Has(a) && !t.Has(b) {
		t.Missing(a, "one of "+list(legal)+t.guess(fields))
		return ""
	}
	if s == "" && key == "" {
		return "" // of a wrong type, which was reported
	}
	if !slices.Contains(legal, s) {
		hint := ""
		if near, ok := nearestTransport(s, legal); ok {
			hint = "; did you mean " + document.Show(near) + "?"
		}
		t.Fault(t.Key(key), "%s is not a supported transport; want %s%s", document.Show(s), list(legal), hint)
		return ""
	}
	t.misfits(key, s, fields)
	return s
}

// misfits reports the fields that do not belong to the transport s, which is given by key.
func (t transportTable) misfits(key, s string, fields []field) {
	for _, f := range fields {
		if t.Has(f.key) && !f.belongs(s) {
			t.Fault(t.Key(f.key), `does not belong to %s = %q but to %s; remove it or change %s`,
				key, s, list(strings.Fields(f.types)), key)
		}
	}
}

// either reads a string that has two names. Both may be present if they agree.
func (t transportTable) either(a, b string) (s, key string) {
	s, aok := t.Str(a)
	other, bok := t.Str(b)
	switch {
	case aok && bok && s != other:
		t.Fault(t.Key(b), "is %s, but %s is %s; both keys mean the same, keep one", document.Show(other), a, document.Show(s))
		return "", ""
	case aok:
		return s, a
	case bok:
		return other, b
	}
	return "", ""
}

// guess returns a hint about the transport that the present fields belong to.
func (t transportTable) guess(fields []field) string {
	for _, f := range fields {
		if t.Has(f.key) && !strings.Contains(f.types, " ") {
			return "; " + f.key + " belongs to " + document.Show(f.types)
		}
	}
	return ""
}

// list formats words as "a", "b" or "c".
func list(words []string) string {
	var b strings.Builder
	for i, w := range words {
		switch {
		case i > 0 && i == len(words)-1:
			b.WriteString(" or ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(document.Show(w))
	}
	return b.String()
}

// transport reads [transport] of the extension id.
func (t transportTable) transport(id string) Transport {
	if !t.Present() {
		return Transport{} // container reports a missing transport
	}
	tr := Transport{Type: TransportType(t.kind("type", "kind", []string{"stdio", "nats", "http"}, fields))}
	tr.Command = t.command(tr.Type == Stdio)
	t.checkProgram(tr.Type == Stdio, tr.Command, "")
	tr.Args = t.args(false)
	tr.Env = t.env()
	tr.Dialect = t.dialect()
	tr.HandshakeTimeout = t.handshakeTimeout()
	tr.SubjectPrefix = t.subjectPrefix(id)
	tr.URL = t.url(tr.Type == HTTP, false)
	tr.Headers = t.headers()
	t.Unknown(document.Error)
	if tr.Dialect == "" && tr.Type != NATS {
		tr.Dialect = Auto
	}
	if tr.Type == Stdio {
		t.misplaced(tr)
	}
	return tr
}

// misplaced warns about the mesh's own placeholders anywhere in values where they are not replaced. Others are only warned about
// where they are a whole value: the text around them may be for the shell that the extension runs.
func (t transportTable) misplaced(tr Transport) {
	const note = "placeholders are not replaced here, only in env, headers and url; the program runs in the extension's directory, so a relative path will do"
	if strings.Contains(tr.Command, "${EXTENSION_") {
		t.Warn(t.Key("command"), note)
	}
	for i, a := range tr.Args {
		if strings.Contains(a, "${EXTENSION_") {
			t.Warn(document.Element(t.Key("args"), i), note)
		}
	}
}

func (t transportTable) command(required bool) string {
	if required {
		t.Missing("command", "the program to run")
	}
	s, ok := t.Str("command")
	if ok && blank(s) {
		t.Fault(t.Key("command"), "is blank; want the program to run")
	} else if strings.ContainsRune(s, 0) {
		t.Fault(t.Key("command"), "contains a NUL character, which is not allowed in a command")
	} else {
		t.oneProgram(s)
	}
	return s
}

// checkProgram warns about a program that cannot be run at present.
func (t transportTable) checkProgram(stdio bool, command, cwd string) {
	if t.Loose { // a sidecar's ~/ is replaced
		command, cwd = home(command), home(cwd)
	}
	if t.program == nil || !stdio || blank(command) || strings.Contains(command+cwd, "${") || strings.ContainsRune(command+cwd, 0) {
		return
	}
	if wrong := t.program(command, cwd); wrong != "" {
		t.Warn(t.Key("command"), "%s %s", document.Show(command), wrong)
	}
}

func (t transportTable) args(expands bool) []string {
	list, _, _ := t.Strs("args")
	for i, a := range list {
		if strings.ContainsRune(a, 0) {
			t.Fault(document.Element(t.Key("args"), i), "contains a NUL character, which is not allowed in an argument")
		}
		t.literal(document.Element(t.Key("args"), i), a, expands)
	}
	return list
}

func (t transportTable) env() map[string]string {
	env := t.StrMap("env")
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value := env[name]
		key := document.Join(t.Key("env"), name)
		if !variable(name) {
			t.Fault(key, `not a variable name; want one such as "MY_MODE"`)
		}
		if strings.ContainsRune(value, 0) {
			t.Fault(key, "contains a NUL character, which is not allowed in a variable")
		}
		t.placeholders(key, value)
		t.literal(key, value, true)
	}
	return env
}

func (t transportTable) dialect() Dialect {
	s, ok := t.Str("dialect")
	if ok && s != string(Auto) && s != string(Ext) && s != string(MCP) {
		t.Fault(t.Key("dialect"), `%s is not a dialect; want "auto", "ext" or "mcp"`, document.Show(s))
	}
	return Dialect(s)
}

func (t transportTable) handshakeTimeout() time.Duration {
	s, ok := t.Str("handshake_timeout")
	if !ok {
		return 0
	}
	key := t.Key("handshake_timeout")
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		t.Fault(key, `%s is not a duration; want one such as "30s" or "1m30s"`, document.Show(s))
	case d <= 0:
		t.Fault(key, `%s is too short; want more than 0, such as "30s"`, document.Show(s))
	case d > MaxHandshakeTimeout:
		t.Fault(key, `%s is too long; want at most "5m"`, document.Show(s))
	}
	return d
}

func (t transportTable) headers() map[string]string {
	headers := t.StrMap("headers")
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		value := headers[name]
		key := document.Join(t.Key("headers"), name)
		if !headerSyntax.MatchString(name) {
			t.Fault(key, `not a header name; want one such as "Authorization"`)
		}
		if lower := strings.ToLower(name); seen[lower] {
			t.Fault(key, "appears twice, in different case; header names ignore case, keep one")
		} else {
			seen[lower] = true
		}
		if !headerValue(value) {
			t.Fault(key, "its value contains a line break or another control character, which is not allowed in a header")
		}
		t.placeholders(key, value)
		t.literal(key, value, true)
	}
	return headers
}

// headerValue reports whether s can be a header's value.
func headerValue(s string) bool { return printable(strings.ReplaceAll(s, "\t", "")) }

// nearestTransport returns the supported transport that s probably means.
func nearestTransport(s string, legal []string) (string, bool) {
	if known := spelling(s); slices.Contains(legal, known) {
		return known, true
	}
	return nearest.Word(s, legal)
}
