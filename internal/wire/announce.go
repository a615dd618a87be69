package wire

import (
	"errors"
	"fmt"
	"strings"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// The limits of an announcement. Its lists are names from a manifest.
const (
	maxNames       = 1000 // per list
	maxVersion     = 64   // bytes
	maxField       = 256  // bytes of a host or hash
	maxName        = 512  // bytes of 128 characters
	maxDescription = 4096 // bytes
)

// Check returns all faults of an announcement: what could harm other extensions of the mesh at prefix, or cannot be shown.
func (a *Announce) Check(prefix Prefix) error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if err := CheckExtension(a.ID, a.Parent); err != nil {
		faults = append(faults, err)
	}
	if a.Version == "" {
		fault("an extension needs a version")
	}
	if err := heartbeat.CheckInstance(a.Instance); err != nil {
		faults = append(faults, err)
	}
	sp, err := ParsePrefix(a.SubjectPrefix)
	switch {
	case err != nil:
		fault("subject_%w", err)
	case prefix.Reserves(sp):
		fault("subject_prefix %q is inside the mesh's own subjects", sp)
	}
	for _, f := range []struct {
		name, value string
		most        int
	}{
		{"version", a.Version, maxVersion}, {"name", a.Name, maxName}, {"description", a.Description, maxDescription},
		{"host", a.Host, maxField}, {"bridge", a.Bridge, maxField}, {"transport", a.Transport, maxField}, {"dialect", a.Dialect, maxField},
		{"manifest_hash", a.ManifestHash, maxField}, {"handshake_hash", a.HandshakeHash, maxField},
	} {
		if len(f.value) > f.most {
			fault("a %s of %d bytes is over the limit of %d", f.name, len(f.value), f.most)
		}
	}
	if strings.ContainsAny(a.Bridge, " .*>\t\r\n") {
		fault("bridge %.80q: want one token of a subject", a.Bridge)
	}
	for name, list := range map[string][]string{"features": a.Features,
		"channels": a.Capabilities.Channels, "providers": a.Capabilities.Providers} {
		if len(list) > maxNames {
			fault("a list of %d %s is over the limit of %d", len(list), name, maxNames)
		}
	}
	return errors.Join(faults...)
}

// CheckExtension checks the syntax of an id, that it is not reserved, and that a dotted one belongs to its parent.
func CheckExtension(id, parent string) error {
	if err := CheckID(id, parent != ""); err != nil {
		if strings.Contains(id, ".") && parent == "" && CheckID(id, true) == nil {
			return fmt.Errorf("the dotted id %q belongs to a member, but the announcement has no parent", id)
		}
		return err
	}
	first, _, dotted := strings.Cut(id, ".")
	switch {
	case Reserved(id):
		return fmt.Errorf("the id %q is reserved for the agent and the mesh", id)
	case parent != "" && (!dotted || first != parent):
		return fmt.Errorf("the id %q is not a member of parent %q", id, parent)
	}
	return nil
}
