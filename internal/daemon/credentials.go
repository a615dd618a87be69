package daemon

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// maxCredentials bounds what is read of a file with credentials.
const maxCredentials = 64 << 10

// Credentials are the secrets with which a Target is reached, for whoever has to keep them from others.
type Credentials struct {
	Values []string // passwords, tokens, seeds and keys, as they are
	Files  []string // paths of the files that they are from
}

// secretsOf are the credentials that t, which is made of f, uses.
func (f NATSFlags) secretsOf(t Target) Credentials {
	var out Credentials
	add := func(values ...string) {
		for _, v := range values {
			if v = strings.TrimSpace(v); v != "" {
				out.Values = append(out.Values, v)
			}
		}
	}
	for _, s := range append(splitURLs(os.Getenv("NATS_URL")), t.Servers...) { // the variable may be set and not be used
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
		// One that cannot be read is none of which a part could be passed on; connecting reports it.
		data, err := os.ReadFile(path)
		if err == nil && len(data) <= maxCredentials {
			add(string(data))
			add(credentialLines(string(data))...)
		}
	}
	return out
}

// credentialLines are the lines of a file of credentials that hold them: a JWT, a seed, a key's text, but not the
// dashes around them.
func credentialLines(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); len(line) >= 32 && !strings.HasPrefix(line, "-") && !strings.Contains(line, " ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// contextFile is the file of the context name of the nats CLI; "" means the selected one. It returns "" where there is
// none.
func contextFile(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	parent := os.Getenv("XDG_CONFIG_HOME")
	if parent == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		parent = filepath.Join(home, ".config")
	}
	if name == "" {
		selected, err := os.ReadFile(filepath.Join(parent, "nats", "context.txt"))
		if name = strings.TrimSpace(string(selected)); err != nil || name == "" {
			return ""
		}
	}
	return filepath.Join(parent, "nats", "context", name+".json")
}

// contextFiles are a context's file, which may hold a password, and those with credentials that it names.
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
	for _, f := range []string{c.Creds, c.NKey, c.Key} {
		if home, err := os.UserHomeDir(); err == nil && strings.HasPrefix(f, "~") {
			f = home + strings.TrimPrefix(f, "~")
		}
		files = append(files, f)
	}
	return files
}
