package gate

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// Grants are the variables and files of its host that an extension may use, by requires.env and by placeholders.
type Grants struct {
	// Strict refuses each variable that is not in Allowed (secrets: granted), except the basic ones. Files outside of
	// the extension's directory need a grant in any case.
	Strict  bool
	Allowed []string // entries.<id>.secrets: names of variables, and file: with an absolute path

	Mesh Credentials // refused to every extension, granted or not
}

// fileGrant is the prefix of a grant of a file.
const fileGrant = "file:"

// Files returns the paths of the files that are granted.
func (g Grants) Files() (paths []string) {
	for _, a := range g.Allowed {
		if path, ok := strings.CutPrefix(a, fileGrant); ok {
			paths = append(paths, path)
		}
	}
	return paths
}

// Credentials are what this process authenticates with at NATS.
type Credentials struct {
	Values []string // passwords, tokens, seeds, JWTs
	Files  []string // paths of the files that hold them
}

// longSecret is the minimum length of a credential that is recognised within a longer value. A shorter one, such as the
// password "dev", would be found in unrelated values.
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

// isFile reports whether path is one of c's files, or a link to one.
func (c Credentials) isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && slices.ContainsFunc(c.Files, func(file string) bool {
		own, err := os.Stat(file)
		return err == nil && os.SameFile(info, own)
	})
}

// refused lists what m needs of this host and must not get: what is not granted, and credentials of the mesh. Both
// have the form of grants: names, and file: with a path.
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
		full := cmp.Or(outside, path)
		if !filepath.IsAbs(full) {
			full = filepath.Join(root, full)
		}
		switch {
		case h.Grants.Mesh.isFile(full):
			mesh = append(mesh, fileGrant+cmp.Or(outside, path))
		case outside == "":
		case !slices.Contains(files, outside):
			notGranted = append(notGranted, fileGrant+outside)
		}
	}
	return sorted(notGranted), sorted(mesh)
}
