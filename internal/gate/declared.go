package gate

import (
	"os"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// CheckManifest calls Check for everything that m requires: bins and env, and each variable that must be set for a
// placeholder of its transport. A variable of a placeholder may be empty, unlike one of env. It also checks whether
// h.Grants allow what m uses of the host. root is the extension's directory.
//
// For a member the requirements and placeholders of its parent count too, since a gated parent gates its members. The
// list of unset variables that manifest.Manifest.Resolve returns has only the member's own.
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

// Declared returns, sorted, the variables of m that NewRedactor treats as secret even if their names do not look so:
// the names in requires.env, the variables that placeholders refer to, and the variables of transport.env that are set
// to the content of a file, since a value in a file of its own is nearly always a secret.
func Declared(m *manifest.Manifest) []string {
	names := slices.Concat(m.Requires.Env, m.Variables())
	for name, value := range m.Transport.Env {
		if strings.Contains(value, "${file:") {
			names = append(names, name)
		}
	}
	return sorted(names)
}
