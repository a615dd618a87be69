package manifest

import (
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/extmesh/extmesh/internal/document"
)

// The limits of a subject_prefix, which are those of the registries (docs/protocol.md).
const (
	maxSubjectPrefix = 64 // bytes
	maxPrefixTokens  = 8
)

// hostSyntax matches a DNS name or an IPv4 address, including international letters and the underscores of container
// names. It is compiled on first use: with all letters of Unicode that takes most of a millisecond, and few manifests
// have a URL.
var hostSyntax = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[\pL\pN_]([\pL\pN_-]*[\pL\pN_])?(\.[\pL\pN_]([\pL\pN_-]*[\pL\pN_])?)*\.?$`)
})

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

// wrongURL returns what is wrong with a URL, or "". It never quotes the URL, which may contain a secret. An empty URL
// is not checked.
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
	if wrong := wrongHost(host); wrong != "" {
		return wrong
	}
	if _, err := url.Parse(s); err != nil {
		return "is not a URL"
	}
	return ""
}

// wrongHost returns what is wrong with host[:port], or "".
func wrongHost(s string) string {
	host, port, hasPort := s, "", false
	if inside, ok := strings.CutPrefix(s, "["); ok {
		address, after, closed := strings.Cut(inside, "]")
		if addr, err := netip.ParseAddr(strings.Replace(address, "%25", "%", 1)); !closed || err != nil || !addr.Is6() {
			return "has no IPv6 address in its brackets, such as [::1]"
		}
		if port, hasPort = strings.CutPrefix(after, ":"); after != "" && !hasPort {
			return "has something other than :port after the IPv6 address"
		}
	} else {
		if strings.Count(s, ":") > 1 {
			return "has colons in its host; an IPv6 address goes in brackets, such as http://[::1]:8080/"
		}
		host, port, hasPort = strings.Cut(s, ":")
		if len(host) > 253 || !hostSyntax().MatchString(host) {
			return "has an invalid host name"
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); hasPort && (err != nil || n == 0) {
		return "has an invalid port (1 to 65535)"
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
	if wrong := wrongPrefix(s); wrong != "" {
		t.Fault(key, `%s %s; want tokens joined by dots, such as "ext" or "team.ext"`, document.Show(s), wrong)
	} else if id != "" && s[strings.LastIndexByte(s, '.')+1:] == id {
		t.Warn(key, "%s ends in the extension's id: the service would be called at %s; usually the prefix is only the part before the id",
			document.Show(s), document.Show(s+"."+id+".rpc"))
	}
	return s
}

// wrongPrefix returns why s cannot be the beginning of a subject that a registry accepts, or "".
func wrongPrefix(s string) string {
	if blank(s) {
		return "is blank"
	}
	if len(s) > maxSubjectPrefix {
		return "is longer than " + strconv.Itoa(maxSubjectPrefix) + " bytes"
	}
	tokens := strings.Split(s, ".")
	if len(tokens) > maxPrefixTokens {
		return "has more than " + strconv.Itoa(maxPrefixTokens) + " tokens"
	}
	for _, token := range tokens {
		if token == "" {
			return "has an empty token"
		}
		if strings.ContainsFunc(token, notInToken) {
			return "has a character that is not a letter of A to Z, a digit or -"
		}
	}
	return ""
}

func notInToken(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-')
}
