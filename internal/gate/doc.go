// Package gate decides what an extension may start with: whether what it requires is there, and which of the
// host's environment variables it gets to see. It also takes the values of secrets out of what the extension
// writes. It belongs to the layer of one host: it knows manifests and the operating system, not the mesh.
//
// The order in which a bridge, and extctl doctor, asks:
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
// One rule holds throughout: names are shown, values never. No error, log line or string made here holds the
// value of a variable.
package gate
