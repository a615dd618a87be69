package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// The limits of an announcement. Its lists are names from a manifest.
const (
	maxAnnounce    = 256 << 10
	maxNames       = 1000 // per list
	maxField       = 256  // bytes of a host or hash
	maxName        = 512  // bytes of 128 characters
	maxDescription = 4096
)

// parseAnnounce parses an announcement received on the subject of id. It refuses what could harm other extensions or
// cannot be shown. The subject's id is authoritative, because NATS permissions apply to subjects.
func parseAnnounce(id string, data []byte, prefix wire.Prefix) (wire.Announce, error) {
	var a wire.Announce
	if len(data) > maxAnnounce {
		return a, fmt.Errorf("an announcement of %d bytes is over the limit of %d", len(data), maxAnnounce)
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return a, fmt.Errorf("the announcement is not valid JSON: %w", err)
	}
	if a.SchemaVersion > wire.SchemaVersion {
		return a, fmt.Errorf("schema_version %d is newer than this registry's %d; upgrade the registry",
			a.SchemaVersion, wire.SchemaVersion)
	}
	if a.ID != id {
		return a, fmt.Errorf("id %.80q does not match the subject's id %.80q", a.ID, id)
	}
	return a, completeAnnounce(&a, prefix)
}

// completeAnnounce checks an announcement and fills in its defaults.
func completeAnnounce(a *wire.Announce, prefix wire.Prefix) error {
	if err := checkAnnounced(a, prefix); err != nil {
		return err
	}
	if a.SubjectPrefix == "" {
		a.SubjectPrefix = string(prefix)
	}
	if a.Transport == "" {
		a.Transport = "nats"
	}
	if a.Dialect == "" {
		a.Dialect = "ext"
	}
	return nil
}

// checkAnnounced collects all faults of an announcement.
func checkAnnounced(a *wire.Announce, prefix wire.Prefix) error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if err := checkID(a.ID, a.Parent); err != nil {
		faults = append(faults, err)
	}
	if a.Version == "" || len(a.Version) > 64 {
		fault("version %.80q: want 1 to 64 bytes", a.Version)
	}
	if err := heartbeat.CheckInstance(a.Instance); err != nil {
		faults = append(faults, err)
	}
	sp, err := wire.ParsePrefix(a.SubjectPrefix)
	switch {
	case err != nil:
		fault("subject_%w", err)
	case prefix.Reserves(sp):
		fault("subject_prefix %q is inside the mesh's own subjects", sp)
	}
	for _, f := range []struct{ name, value string }{
		{"host", a.Host}, {"bridge", a.Bridge}, {"transport", a.Transport}, {"dialect", a.Dialect},
		{"manifest_hash", a.ManifestHash}, {"handshake_hash", a.HandshakeHash},
	} {
		if len(f.value) > maxField {
			fault("a %s of %d bytes is over the limit of %d", f.name, len(f.value), maxField)
		}
	}
	if len(a.Name) > maxName {
		fault("a name of %d bytes is over the limit of %d", len(a.Name), maxName)
	}
	if strings.ContainsAny(a.Bridge, " .*>\t\r\n") {
		fault("bridge %.80q: want one token of a subject", a.Bridge)
	}
	if len(a.Description) > maxDescription {
		fault("a description of %d bytes is over the limit of %d", len(a.Description), maxDescription)
	}
	for name, list := range map[string][]string{"features": a.Features,
		"channels": a.Capabilities.Channels, "providers": a.Capabilities.Providers} {
		if len(list) > maxNames {
			fault("a list of %d %s is over the limit of %d", len(list), name, maxNames)
		}
	}
	return errors.Join(faults...)
}

// checkID checks the syntax of an id, that it is not reserved, and that a dotted one belongs to its parent.
func checkID(id, parent string) error {
	if err := wire.CheckID(id, parent != ""); err != nil {
		if strings.Contains(id, ".") && parent == "" && wire.CheckID(id, true) == nil {
			return fmt.Errorf("the dotted id %q belongs to a member, but the announcement has no parent", id)
		}
		return err
	}
	first, _, dotted := strings.Cut(id, ".")
	switch {
	case manifest.Reserved(id):
		return fmt.Errorf("the id %q is reserved for the agent and the mesh", id)
	case parent != "" && (!dotted || first != parent):
		return fmt.Errorf("the id %q is not a member of parent %q", id, parent)
	}
	return nil
}

// announced is the announcement of one instance.
type announced struct {
	wire.Announce
	at      time.Time
	size    int
	digest  string // of the announcement as received
	from    string // the bridge with an inventory that lists the instance; "" if the instance announced itself
	implied bool   // derived from heartbeats: nothing was announced
}

func (a *announced) subject() string { return wire.Prefix(a.SubjectPrefix).RPC(a.ID) }

// conflictingID is the only other id that can have the same subject: an id is one token, or two for a member. So b with the prefix SP.a
// has the subject of a.b with the prefix SP.
func (a *announced) conflictingID() string {
	if _, last, member := strings.Cut(a.ID, "."); member {
		return last
	}
	token := a.SubjectPrefix[strings.LastIndex(a.SubjectPrefix, ".")+1:]
	return token + "." + a.ID
}

// rpcSubject is the subject for handshakes and pings of this instance.
func (a *announced) rpcSubject() string {
	if a.Instance != "" && slices.Contains(a.Features, wire.FeatureInstance) {
		return wire.Prefix(a.SubjectPrefix).InstanceRPC(a.ID, a.Instance)
	}
	return a.subject()
}
