package clients

import (
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/extmesh/extmesh/internal/gate"
)

// secretsDir is the directory of an extension in which its secrets are, each in a file of its own. A manifest may use files
// below its own directory without a grant.
const secretsDir = "secrets"

// maxSecret is the maximum size of a value that ${file:} can read.
const maxSecret = 64 << 10

var (
	capitals  = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	assigned  = regexp.MustCompile(`^(-*)([A-Za-z][A-Za-z0-9_.-]*)(=|:[ \t]*)(.+)$`)
	notInFile = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)
	inJSON    = regexp.MustCompile(`"([^"\\]+)\\*"\s*:\s*\\*"[^"\\]`) // a name with a text, also in JSON within JSON
	longID    = regexp.MustCompile(`[0-9A-Za-z]{20,}|[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}`)
)

// secretName reports whether a name of a variable, a flag, a header or a parameter of a URL looks secret: by the rule for
// variables, in any spelling, and by some names that the rule does not have.
func secretName(name string) bool {
	name = capitals.ReplaceAllString(strings.TrimLeft(name, "-"), "${1}_${2}")
	name = "_" + strings.ReplaceAll(strings.ToUpper(name), "-", "_")
	return gate.SecretLike(name) || strings.HasSuffix(name, "_PASS") || slices.Contains([]string{"_AUTHORIZATION", "_PROXY_AUTHORIZATION", "_COOKIE"}, name)
}

// moved is a secret in a file of its own.
type moved struct {
	file  string // below the extension's directory, with slashes
	value string
}

// moveSecrets replaces the secrets in a server's values by references to files. server is its name.
func moveSecrets(server string, m *member) (out []moved) {
	move := func(name, value string) string {
		if value == "" || reference(value) || m.refersToOwn(value) {
			return value
		}
		file := path.Join(secretsDir, server+"."+strings.Trim(notInFile.ReplaceAllString(name, "-"), "-."))
		for i := 2; slices.ContainsFunc(out, func(s moved) bool { return s.file == file }); i++ {
			file = strings.TrimSuffix(file, "-"+strconv.Itoa(i-1)) + "-" + strconv.Itoa(i)
		}
		out = append(out, moved{file, strings.ReplaceAll(value, "$${", "${")})
		return "${file:" + file + "}"
	}
	for i, arg := range m.Args {
		name := "arg" + strconv.Itoa(i+1)
		switch parts := assigned.FindStringSubmatch(arg); {
		case i > 0 && strings.HasPrefix(m.Args[i-1], "-") && !strings.HasPrefix(arg, "-") && secretName(m.Args[i-1]):
			m.Args[i] = move(strings.TrimLeft(m.Args[i-1], "-"), arg)
		case holdsSecret(arg):
			m.Args[i] = parts[1] + parts[2] + parts[3] + move(parts[2], parts[4])
		case parts != nil && holdsSecret(parts[4]): // --env=API_KEY=value, --header=Authorization: Bearer value
			inner := assigned.FindStringSubmatch(parts[4])
			m.Args[i] = parts[1] + parts[2] + parts[3] + inner[1] + inner[2] + inner[3] + move(inner[2], inner[4])
		case secretValue(arg):
			m.Args[i] = move(name, arg)
		case parts != nil && isURL(parts[4]): // --url=https://…
			m.Args[i] = parts[1] + parts[2] + parts[3] + moveFromURL(parts[4], move)
		default:
			m.Args[i] = moveFromURL(arg, move)
		}
	}
	for _, values := range []map[string]string{m.Env, m.Headers} {
		for _, name := range sorted(values) {
			if secretName(name) || secretValue(values[name]) {
				values[name] = move(name, values[name])
			} else {
				values[name] = moveFromURL(values[name], move)
			}
		}
	}
	if gate.HoldsPassword(m.URL) {
		m.URL = move("url", m.URL)
	} else {
		m.URL = moveFromURL(m.URL, move)
	}
	return out
}

// secretValue reports whether a value contains a secret, whatever its name: an address with a password, a token after Bearer
// or Basic, or JSON in which a secret name has a value.
func secretValue(value string) bool {
	return gate.HoldsPassword(value) || len(gate.Tokens(value)) > 0 ||
		slices.ContainsFunc(inJSON.FindAllStringSubmatch(value, -1), func(match []string) bool { return secretName(match[1]) })
}

// holdsSecret reports whether a text assigns a value to a secret name.
func holdsSecret(text string) bool {
	parts := assigned.FindStringSubmatch(text)
	return parts != nil && secretName(parts[2]) && !strings.HasPrefix(parts[4], "//")
}

// reference reports whether a value has a placeholder, so that it is no secret itself.
func reference(value string) bool {
	return strings.Contains(strings.ReplaceAll(value, "$${", ""), "${")
}

// refersToOwn reports whether a value has a reference to one of the server's own variables, which the server replaces itself.
func (m *member) refersToOwn(value string) bool {
	for name := range m.Env {
		if strings.Contains(value, "$${"+name+"}") {
			return true
		}
	}
	return false
}

func isURL(s string) bool { return strings.HasPrefix(s, "http://") || strings.HasPrefix(s, "https://") }

// moveFromURL moves the secret parts of the path and the secret parameters of a URL. The rest of it stays as it is, and so does
// what is no URL.
func moveFromURL(s string, move func(name, value string) string) string {
	if !isURL(s) {
		return s
	}
	before, query, ok := strings.Cut(s, "?")
	before = moveFromPath(before, move)
	if !ok {
		return before
	}
	query, fragment, hasFragment := strings.Cut(query, "#")
	parts := strings.Split(query, "&")
	for i, part := range parts {
		key, value, _ := strings.Cut(part, "=")
		name, err := url.QueryUnescape(key)
		if err == nil && secretName(name) && value != "" {
			parts[i] = key + "=" + move(name, value)
		}
	}
	s = before + "?" + strings.Join(parts, "&")
	if hasFragment {
		s += "#" + fragment
	}
	return s
}

// moveFromPath moves the parts of a URL's path that look like keys: with a long run of letters and digits, or a UUID.
func moveFromPath(s string, move func(name, value string) string) string {
	if reference(s) { // a placeholder can have slashes
		return s
	}
	parts := strings.Split(s, "/")
	for i, part := range parts {
		if i > 2 && strings.ContainsAny(longID.FindString(part), "0123456789") { // after https, nothing and the host
			parts[i] = move("url", part)
		}
	}
	return strings.Join(parts, "/")
}

// fileText is the content of the file for a secret: ${file:} removes one line end.
func (s moved) fileText() string {
	if strings.HasSuffix(s.value, "\r") {
		return s.value
	}
	return s.value + "\n"
}
