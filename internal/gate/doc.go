// Package gate decides whether an extension may start and with which environment: it checks the extension's
// requirements and grants, and selects the environment variables of the host that its child receives. It also removes
// the values of secrets from the child's output. It belongs to the layer of one host: it depends on manifests and the
// operating system, not on the mesh.
//
// A bridge, like extctl doctor, uses it in this order:
//
//	r := gate.Host{Grants: g}.CheckManifest(m, root)     // bins, env, what placeholders take from the host
//	if r.Refused() || !r.OK() && gating == config.Skip {
//		gate.LogSkipped(log, id, r)                  // the catalog's reason is r.String()
//		return
//	}
//	t, _, err := m.Resolve(expander)                     // pkg/manifest: placeholders
//	dir, err := gate.MakeStateDir(base, id)
//	env, stripped := gate.Env(os.Environ(), gate.EnvOptions{Allow: m.Requires.Env, Add: t.Env, StateDir: dir, …})
//	redactor := gate.NewRedactor(os.Environ(), gate.Declared(m), t.Env)
//
// Throughout the package, names of variables are shown and values never are: no error, log line or string made here
// contains the value of a variable.
package gate
