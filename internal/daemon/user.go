package daemon

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"
)

// InboxPrefix returns the prefix of the reply subjects.
func (t Target) InboxPrefix() string {
	if t.base.InboxPrefix == "" {
		return "_INBOX"
	}
	return t.base.InboxPrefix
}

// Users returns the names of the user that the credentials are of: its name, and for a JWT also its key. It returns none if
// the credentials do not contain a name.
func (t Target) Users() []string {
	var out []string
	add := func(names ...string) {
		for _, n := range names {
			if n != "" {
				out = append(out, n)
			}
		}
	}
	for _, s := range t.Servers {
		if u, err := url.Parse(s); err == nil && u.User != nil {
			if _, set := u.User.Password(); set { // otherwise it is a token
				add(u.User.Username())
				break
			}
		}
	}
	add(t.base.User)
	if t.base.UserJWT != nil {
		if jwt, err := t.base.UserJWT(); err == nil {
			add(jwtNames(jwt)...)
		}
	}
	return out
}

// HasCredentials reports whether any credentials are used, of any kind.
func (t Target) HasCredentials() bool {
	if t.base.User != "" || t.base.Token != "" || t.base.UserJWT != nil || t.base.Nkey != "" {
		return true
	}
	if t.base.TLSConfig != nil && len(t.base.TLSConfig.Certificates) > 0 || t.base.TLSCertCB != nil {
		return true
	}
	for _, s := range t.Servers {
		if u, err := url.Parse(s); err == nil && u.User != nil {
			return true
		}
	}
	return false
}

// jwtNames reads the name and the key of a user from its JWT, without checking its signature.
func jwtNames(jwt string) []string {
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return nil
	}
	var claims struct{ Name, Sub string }
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &claims) != nil {
		return nil
	}
	return []string{claims.Name, claims.Sub}
}
