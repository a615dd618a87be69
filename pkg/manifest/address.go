package manifest

import (
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/internal/wire"
)

// url reads the key url. A URL with placeholders is checked as far as possible now, and completely after they are
// replaced.
func (t transportTable) url(required, query bool) string {
	want := "http(s)://host[:port][/path]"
	if required {
		t.Missing("url", want)
	}
	s, ok := t.Str("url")
	key := t.Key("url")
	switch {
	case !ok:
	case blank(s):
		t.Fault(key, "is blank; want %s", want)
	case t.placeholders(key, s):
		if wrong := wrongURL(sampleURL(s), query); wrong != "" {
			t.Fault(key, "%s; want %s", wrong, want)
		}
	}
	return s
}

// sampleURL replaces the placeholders of a URL by 1, which is valid in a host, a port and a path. It returns "" if
// nothing is left to check.
func sampleURL(s string) string {
	pieces, err := split(s)
	if err != nil || len(pieces) == 0 || pieces[0].kind != literal || strings.Contains(s, "[${") {
		return ""
	}
	var b strings.Builder
	for _, p := range pieces {
		if p.kind == literal {
			b.WriteString(p.text)
		} else {
			b.WriteString("1")
		}
	}
	return b.String()
}

// wrongURL returns what is wrong with a URL, or "". It never quotes the URL, which may contain a secret; the error of
// url.Parse does. An empty URL is not checked.
func wrongURL(s string, query bool) string {
	if s == "" {
		return ""
	}
	if !printable(s) || strings.ContainsFunc(s, unicode.IsSpace) {
		return "contains white space or a control character"
	}
	if strings.Contains(s, "#") {
		return "has a fragment (#…), which is never sent"
	}
	if !query && strings.Contains(s, "?") {
		return "has a query (?…), which is not allowed here"
	}
	scheme, rest, _ := strings.Cut(s, "://")
	if scheme = strings.ToLower(scheme); scheme != "http" && scheme != "https" || rest == "" {
		return "does not begin with http:// or https:// and a host"
	}
	host := rest
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		host = rest[:i]
	}
	if strings.Contains(host, "@") {
		return "has a user or a password in it; put it into headers, such as Authorization"
	}
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" {
		return "is not a URL"
	}
	if port := u.Port(); port != "" || strings.HasSuffix(u.Host, ":") {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "has an invalid port (1 to 65535)"
		}
	}
	return ""
}

// subjectPrefix reads the key subject_prefix of the extension id.
func (t transportTable) subjectPrefix(id string) string {
	s, ok := t.Str("subject_prefix")
	key := t.Key("subject_prefix")
	if !ok {
		return ""
	}
	if _, err := wire.ParsePrefix(s); err != nil || s == "" {
		t.Fault(key, `%s is not a subject prefix; want up to 8 tokens of letters A to Z, digits and "-", joined by dots, up to 64 bytes together, such as "ext" or "team.ext"`,
			document.Show(s))
	} else if id != "" && s[strings.LastIndexByte(s, '.')+1:] == id {
		t.Warn(key, "%s ends in the extension's id: the service would be called at %s; usually the prefix is only the part before the id",
			document.Show(s), document.Show(s+"."+id+".rpc"))
	}
	return s
}
