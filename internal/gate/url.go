package gate

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// natsSchemes lists the schemes of NATS addresses, in which a user without a password (nats://token@host) is a token.
var natsSchemes = []string{"nats", "tls", "ws", "wss"}

// HoldsPassword reports whether value contains an address with a password in it: scheme://user:password@host.
func HoldsPassword(value string) bool { return len(urlSecrets(value)) > 0 }

// urlSecrets returns the passwords in the addresses that value contains, as written and decoded. value may be a list of
// addresses, or a command line that contains one.
func urlSecrets(value string) (secrets []string) {
	for rest := value; ; {
		before, after, ok := strings.Cut(rest, "://")
		if !ok {
			return secrets
		}
		if secret := userSecret(scheme(before), after); secret != "" {
			secrets = append(secrets, secret)
			if plain, err := url.PathUnescape(secret); err == nil && plain != secret {
				secrets = append(secrets, plain)
			}
		}
		rest = after
	}
}

// maxAuthority limits how many bytes are searched for the end of a password: otherwise a value that consists of
// beginnings of addresses would take quadratic time.
const maxAuthority = 4 << 10

// scheme returns the name at the end of the text before "://".
func scheme(before string) string {
	i := strings.LastIndexFunc(before, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("+-.", r))
	})
	return strings.ToLower(before[i+1:])
}

// userSecret returns the password, or the token, at the beginning of rest, which follows "://". A password may contain
// "/", although it should be escaped, but a port followed by a path is not a password.
func userSecret(scheme, rest string) string {
	rest = rest[:min(len(rest), maxAuthority)]
	if end := strings.IndexFunc(rest, func(r rune) bool { return r <= ' ' || r == ',' || r == '"' || r == '\'' }); end >= 0 {
		rest = rest[:end]
	}
	user, password, ok := strings.Cut(rest, ":")
	if !ok || strings.ContainsAny(user, "/?#@[") {
		token, _, ok := strings.Cut(rest, "@")
		if ok && slices.Contains(natsSchemes, scheme) && !strings.ContainsAny(token, "/?#[:") {
			return token
		}
		return ""
	}
	port := strings.TrimLeft(password, "0123456789")
	if len(port) < len(password) && (port == "" || strings.ContainsAny(port[:1], "/?#")) {
		return ""
	}
	i := strings.IndexByte(password, '@')
	if next := strings.IndexAny(password, "/?#"); i >= 0 && (next < 0 || next > i) {
		// Up to the last "@" of the authority: a password may contain one.
		if next < 0 {
			next = len(password)
		}
		i = strings.LastIndexByte(password[:next], '@')
	}
	if i <= 0 {
		return ""
	}
	return password[:i]
}

// authorization matches the value of a header Authorization, alone or within another text, such as JSON or the headers of
// OpenTelemetry (Authorization=Basic%20...).
var authorization = regexp.MustCompile(`(?i)(?:^|["':=] *)(?:Bearer|Basic)(?: +|%20)([^\s"',\\]+)`)

// Tokens returns the tokens in value that follow Bearer or Basic, as in the header Authorization: neither a word, as in "Basic
// settings", nor a variable of a shell.
func Tokens(value string) (tokens []string) {
	for _, match := range authorization.FindAllStringSubmatch(value, -1) {
		if strings.Trim(match[1], "abcdefghijklmnopqrstuvwxyz") != "" && !strings.HasPrefix(match[1], "$") {
			tokens = append(tokens, match[1])
		}
	}
	return tokens
}
