package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
)

// maxAnnounce is the size limit of an announcement.
const maxAnnounce = 256 << 10

// parseAnnounce parses an announcement received on the subject of id. It refuses what could harm other extensions or
// cannot be shown. The subject's id is authoritative, because NATS permissions apply to subjects.
func parseAnnounce(id string, data []byte, prefix wire.Prefix) (wire.Announce, error) {
	var a wire.Announce
	if len(data) > maxAnnounce {
		return a, fmt.Errorf("an announcement of %d bytes is over the limit of %d", len(data), maxAnnounce)
	}
	if err := json.Unmarshal(data, &a); err != nil {
		if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
			return a, fmt.Errorf("%s in the announcement has the wrong type: %s", strings.TrimPrefix(e.Field, "About."), e.Value)
		}
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
	if err := a.Check(prefix); err != nil {
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
