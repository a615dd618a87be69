package gate

import (
	"os"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// CheckManifest is Check for all that m requires: bins and env, and each variable that must be set for a placeholder
// of its transport. A variable of a placeholder may be empty, unlike one of env. It also checks whether h.Grants allow
// what m takes from the host. root is the extension's directory.
//
// For a member its parent's requirements and placeholders count too, since a gated parent gates its members. That
// is why manifest.Manifest.Resolve's list of unset variables is not enough for one: it knows the member's own only.
func (h Host) CheckManifest(m *manifest.Manifest, root string) Result {
	if h.LookupEnv == nil {
		h.LookupEnv = os.LookupEnv
	}
	unset := slices.DeleteFunc(m.Variables(), func(name string) bool {
		_, set := h.LookupEnv(name)
		return set
	})
	r := h.Check(m.Requires, root, unset)
	r.NotGranted, r.Mesh = h.refused(m, root)
	return r
}

// Declared are the variables whose values NewRedactor is to know for m, whatever their names look like: those of
// requires.env, those that its placeholders refer to, and those of transport.env that take a file's content, which
// nobody keeps in a file of its own unless it is a secret. Sorted.
func Declared(m *manifest.Manifest) []string {
	names := slices.Concat(m.Requires.Env, m.Variables())
	for name, value := range m.Transport.Env {
		if strings.Contains(value, "${file:") {
			names = append(names, name)
		}
	}
	return sorted(names)
}
