package daemon

import (
	"cmp"
	"encoding/json"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strings"
)

// maxCredentials is the maximum size of a file with credentials.
const maxCredentials = 64 << 10

// Credentials are the secrets that a program uses to connect to a Target. The bridge keeps them from its children.
type Credentials struct {
	Values []string // passwords, tokens, seeds and keys
	Files  []string // paths of the files that contain them
}

// secretsOf returns the credentials that f and t, the target resolved from f, use.
func (f NATSFlags) secretsOf(t Target) Credentials {
	var out Credentials
	add := func(values ...string) {
		for _, v := range values {
			if v = strings.TrimSpace(v); v != "" {
				out.Values = append(out.Values, v)
			}
		}
	}
	for _, s := range append(splitURLs(os.Getenv("NATS_URL")), t.Servers...) { // NATS_URL may be set without being used
		if u, err := url.Parse(s); err == nil && u.User != nil {
			password, set := u.User.Password()
			if add(password); !set {
				add(u.User.Username()) // a token
			}
		}
	}
	add(t.base.Password, t.base.Token)
	for _, path := range append([]string{f.Creds, f.NKey, f.TLSKey}, contextFiles(t.context)...) {
		if path == "" {
			continue
		}
		out.Files = append(out.Files, path)
		// An unreadable file needs no protection of its lines; connecting reports the error.
		data, err := os.ReadFile(path)
		if err == nil && len(data) <= maxCredentials {
			add(string(data))
			add(credentialLines(string(data))...)
		}
	}
	return out
}

// credentialLines returns the lines of a credentials file that contain a secret: a JWT, a seed or the text of a key,
// without the delimiter lines.
func credentialLines(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); len(line) >= 32 && !strings.HasPrefix(line, "-") && !strings.Contains(line, " ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// contextFile returns the file of the nats CLI's context name, "" for the selected one. It returns "" if there is no
// such context.
func contextFile(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	if name = cmp.Or(name, selectedContext()); name == "" {
		return ""
	}
	return filepath.Join(contextDir(), "context", name+".json")
}

// selectedContext is the name of the nats CLI's selected context; "" if none is selected.
func selectedContext() string {
	name, err := os.ReadFile(filepath.Join(contextDir(), "context.txt"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// Contexts returns the names of the nats CLI's contexts.
func Contexts() (names []string) {
	files, _ := filepath.Glob(filepath.Join(contextDir(), "context", "*.json")) // the pattern is valid
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	return names
}

// contextDir is the directory of the nats CLI's contexts.
func contextDir() string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "nats")
	}
	return filepath.Join(homeDir(), ".config", "nats")
}

// homeDir is the home directory as natscontext determines it, which may differ from $HOME. natscontext fails for a user without a name,
// as in some containers.
func homeDir() string {
	u, err := user.Current()
	if err != nil {
		return cmp.Or(os.Getenv("HOME"), "/")
	}
	return u.HomeDir
}

// contextFiles returns the file of a context, which may contain a password, and the credential files that it names.
func contextFiles(path string) []string {
	if path == "" {
		return nil
	}
	files := []string{path}
	var c struct{ Creds, NKey, Key string }
	data, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(data, &c) != nil {
		return files
	}
	for _, f := range []string{os.ExpandEnv(c.Creds), c.NKey, c.Key} {
		if rest, ok := strings.CutPrefix(f, "~"); ok {
			f = homeDir() + rest
		}
		files = append(files, f)
	}
	return files
}
