package config

import (
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/document"
)

// Token is a bearer token for the MCP server, as a hash.
type Token struct {
	Name     string    // who presents it
	SHA256   string    // of the token, in lower-case hex
	Profiles []string  // empty: all
	Expires  time.Time // zero: never
	Context  string    // of the nats CLI, by name or absolute path: with its credentials calls are sent. "": with the server's
}

// Permits reports whether clients with the token may use a profile.
func (t Token) Permits(profile string) bool {
	return len(t.Profiles) == 0 || slices.Contains(t.Profiles, profile)
}

// IsExpired reports whether the token is not valid any more.
func (t Token) IsExpired(now time.Time) bool {
	return !t.Expires.IsZero() && !now.Before(t.Expires)
}

// Profile is a selection of tools for clients of the MCP server.
type Profile struct {
	Only, Exclude         []string
	ReadOnly              bool
	Names, Tools          string
	NameLimit, SearchOver int
	Instructions          string
}

// DefaultProfile is the profile of clients that do not choose one.
const DefaultProfile = "default"

var (
	mcpName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$`)
	sha256  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// ParseTokens reads a file of tokens: {tokens: {<name>: {sha256, profiles?, expires?, context?}}}. A context that
// is a relative path begins at the directory of the file. The error has all faults.
func ParseTokens(path string, text []byte) ([]Token, error) {
	var out []Token
	err := parseNamed(path, text, "tokens", func(name string, t *document.Table) {
		token := Token{Name: name}
		token.SHA256, _ = t.Str("sha256")
		if !sha256.MatchString(token.SHA256) {
			t.Fault(t.Key("sha256"), "want 64 lower-case hexadecimal digits; `extctl mcp token NAME` prints them")
		}
		token.Profiles, _, _ = t.Strs("profiles")
		if text, ok := t.Str("expires"); ok {
			token.Expires = parseTime(text)
			if token.Expires.IsZero() {
				t.Fault(t.Key("expires"), "%s is not a time; want a date such as 2027-01-31, or 2027-01-31T12:00:00Z", document.Show(text))
			}
		}
		if token.Context, _ = t.Str("context"); filepath.Ext(token.Context) == ".json" {
			token.Context = absolute(path, token.Context)
		}
		out = append(out, token)
	})
	return out, err
}

// absolute returns the absolute path of a file that is named in the file at path.
func absolute(path, name string) string {
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(path), name)
	}
	if abs, err := filepath.Abs(name); err == nil { // otherwise opening the file reports the error
		return abs
	}
	return name
}

func parseTime(text string) time.Time {
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			return t
		}
	}
	return time.Time{}
}

// ParseProfiles reads a file of profiles: {profiles: {<name>: {only?, exclude?, …}}}. The error has all faults.
func ParseProfiles(path string, text []byte) (map[string]Profile, error) {
	out := map[string]Profile{}
	err := parseNamed(path, text, "profiles", func(name string, t *document.Table) {
		var p Profile
		p.Only, _, _ = t.Strs("only")
		p.Exclude, _, _ = t.Strs("exclude")
		p.ReadOnly, _ = t.Bool("read_only")
		p.Names, _ = t.Str("names")
		p.Tools, _ = t.Str("tools")
		p.Instructions, _ = t.Str("instructions")
		if n, ok := t.Int("name_limit", 24, 64); ok {
			p.NameLimit = int(n)
		}
		if n, ok := t.Int("search_over", 1, 1_000_000); ok {
			p.SearchOver = int(n)
		}
		_, _ = t.Str("description")
		out[name] = p
	})
	return out, err
}

// parseNamed reads a file whose only key is a table of named tables.
func parseNamed(path string, text []byte, key string, read func(name string, t *document.Table)) error {
	d, ok := document.Open(path, text, document.Options{})
	var top *document.Table
	if ok {
		top, ok = d.YAML(d.Text())
	}
	if ok {
		all := top.Sub(key)
		top.Unknown(document.Error)
		for _, name := range all.Names() {
			if !mcpName.MatchString(name) {
				d.FaultKey(all.Key(name), "%s is not a name; want letters, digits and _.@-, at most 64", document.Show(name))
			}
			t := all.Sub(name)
			read(name, t)
			t.Unknown(document.Error)
		}
		all.Unknown(document.Error)
	}
	var faults []error
	for _, f := range d.Findings() {
		faults = append(faults, errors.New(f.String()))
	}
	return errors.Join(faults...)
}
