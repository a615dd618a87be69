package gate

import (
	"os"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// Grants are what an extension may take from its host: by requires.env, and by the placeholders of its manifest.
type Grants struct {
	// Strict refuses each variable that is not in Allowed (secrets: granted). The basic ones need no grant. Files
	// outside of the extension's directory need one in any case.
	Strict  bool
	Allowed []string // entries.<id>.secrets: names of variables, and file: with an absolute path

	Mesh Credentials // which nothing gets, granted or not
}

// fileGrant begins a grant of a file.
const fileGrant = "file:"

// Files are the paths of the files that are granted.
func (g Grants) Files() (paths []string) {
	for _, a := range g.Allowed {
		if path, ok := strings.CutPrefix(a, fileGrant); ok {
			paths = append(paths, path)
		}
	}
	return paths
}

// Credentials are those with which this process reaches NATS.
type Credentials struct {
	Values []string // passwords, tokens, seeds, JWTs
	Files  []string // paths of the files that hold them
}

// longSecret is the length from which on a credential is recognised within a longer value. A shorter one, such as the
// password "dev", would be found in values that have nothing to do with it.
const longSecret = 16

// in reports whether value contains one of c.
func (c Credentials) in(value string) bool {
	if value == "" || len(c.Values) == 0 {
		return false
	}
	passwords := urlSecrets(value)
	return slices.ContainsFunc(c.Values, func(secret string) bool {
		return secret != "" && (secret == value || slices.Contains(passwords, secret) ||
			len(secret) >= longSecret && strings.Contains(value, secret))
	})
}

// isFile reports whether path is one of c's files, or leads to one.
func (c Credentials) isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && slices.ContainsFunc(c.Files, func(file string) bool {
		own, err := os.Stat(file)
		return err == nil && os.SameFile(info, own)
	})
}

// refused lists what m needs of this host and must not get: what is not granted, and what are credentials of the mesh.
// Both are written as grants are: names, and file: with a path.
func (h Host) refused(m *manifest.Manifest, root string) (notGranted, mesh []string) {
	needs, files := m.Needs(), h.Grants.Files()
	for _, name := range needs.Env {
		value, _ := h.LookupEnv(name)
		switch {
		case h.Grants.Mesh.in(value):
			mesh = append(mesh, name)
		case h.Grants.Strict && !Basic(name) && !slices.Contains(h.Grants.Allowed, name):
			notGranted = append(notGranted, name)
		}
	}
	e := manifest.Expander{Root: root}
	for _, path := range needs.Files {
		outside := e.Outside(path)
		switch {
		case outside == "":
		case h.Grants.Mesh.isFile(outside):
			mesh = append(mesh, fileGrant+outside)
		case !slices.Contains(files, outside):
			notGranted = append(notGranted, fileGrant+outside)
		}
	}
	return sorted(notGranted), sorted(mesh)
}
