package wire

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// Inventory is one message of a bridge on P.registry.host.<bridge> (docs/protocol.md, "Inventory"). Together, the
// messages of one run list everything that the bridge runs. They are numbered, so that a registry detects that one was
// lost and requests the full inventory.
type Inventory struct {
	SchemaVersion int           `json:"schema_version"`
	Bridge        string        `json:"bridge"` // must be the name in the subject
	Run           string        `json:"run"`    // identifies one run of the bridge, as in the result of ping
	Seq           uint64        `json:"seq"`    // of this message, from 1; of a heartbeat: of the last message before it
	Kind          InventoryKind `json:"kind"`
	Part          int           `json:"part,omitempty"`  // of a full inventory in several messages: 1 to Parts; absent: 1
	Parts         int           `json:"parts,omitempty"` // absent: 1
	IntervalMS    int64         `json:"interval_ms,omitempty"`

	Host          *InventoryHost      `json:"host,omitempty"` // in the first part of a full inventory; in a delta if it has changed
	Instances     []InventoryInstance `json:"instances,omitempty"`
	Removed       []InstanceRef       `json:"removed,omitempty"` // in a delta only
	Skills        []SkillEntry        `json:"skills,omitempty"`
	RemovedSkills []string            `json:"removed_skills,omitempty"` // directories; in a delta only
}

// InventoryKind is the kind of an Inventory message.
type InventoryKind string

// The kinds of Inventory messages.
const (
	InventoryFull      InventoryKind = "full"      // everything; what it does not list is gone
	InventoryDelta     InventoryKind = "delta"     // what has changed since the message before
	InventoryHeartbeat InventoryKind = "heartbeat" // nothing has changed since the message with this number
)

// InventoryHost describes a bridge and what it could not start.
type InventoryHost struct {
	Host            string        `json:"host,omitempty"`
	Version         string        `json:"version"`
	Since           time.Time     `json:"since"` // start of the run
	Problems        []HostProblem `json:"problems,omitempty"`
	ProblemsLeftOut int           `json:"problems_left_out,omitempty"` // because the message would be too large
}

// InventoryInstance is one instance of a bridge: its announcement and its state. Without Instance it is the entry of a
// manifest that describes a native service; such an entry has no state.
type InventoryInstance struct {
	Announce
	State    heartbeat.State    `json:"state,omitempty"`
	Reason   string             `json:"reason,omitempty"`
	Restarts uint64             `json:"restarts,omitempty"`
	Breaker  *heartbeat.Breaker `json:"breaker,omitempty"`
}

// InstanceRef identifies an instance, or with an empty Instance the entry of a manifest.
type InstanceRef struct {
	ID       string `json:"id"`
	Instance string `json:"instance,omitempty"`
}

// Compare compares the ids, and then the instances.
func (r InstanceRef) Compare(other InstanceRef) int {
	return cmp.Or(cmp.Compare(r.ID, other.ID), cmp.Compare(r.Instance, other.Instance))
}

// The limits of an inventory.
const (
	MaxInventory          = 512 << 10 // bytes of one message; it also has to fit into the server's max_payload
	MaxInventoryInstances = 10_000    // of one bridge
	MaxInventorySkills    = 1000      // of one bridge
	maxInventoryParts     = 10_000
)

// ParseInventory decodes a message that was received on the subject of a bridge. It checks the message as a whole: its
// size, number, kind, and that it names the bridge of its subject, because NATS permissions apply to subjects. The
// entries are checked one by one by InventoryInstance.Check, so that a wrong one does not affect the others. Unknown
// members are ignored.
func ParseInventory(bridge string, data []byte) (Inventory, error) {
	var v Inventory
	if len(data) > MaxInventory {
		return v, fmt.Errorf("an inventory message of %d bytes is over the limit of %d", len(data), MaxInventory)
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, fmt.Errorf("the inventory is not valid JSON: %w", err)
	}
	if v.SchemaVersion > SchemaVersion {
		return v, fmt.Errorf("schema_version %d is newer than this registry's %d; upgrade the registry", v.SchemaVersion, SchemaVersion)
	}
	if v.Bridge != bridge {
		return v, fmt.Errorf("bridge %.80q does not match the subject's bridge %.80q", v.Bridge, bridge)
	}
	if heartbeat.CheckInstance(v.Run) != nil || v.Run == "" {
		return v, fmt.Errorf("run %.80q: want 1 to 64 of [A-Za-z0-9_-]", v.Run)
	}
	if v.Seq == 0 {
		return v, errors.New("the inventory has no seq; the first message of a run has seq 1")
	}
	return v, v.check()
}

// check checks what depends on the kind, and fills in the defaults of Part and Parts.
func (v *Inventory) check() error {
	v.Part, v.Parts = max(v.Part, 1), max(v.Parts, 1)
	switch {
	case len(v.Instances) > MaxInventoryInstances || len(v.Removed) > MaxInventoryInstances:
		return fmt.Errorf("the inventory lists more than %d instances", MaxInventoryInstances)
	case len(v.Skills) > MaxInventorySkills || len(v.RemovedSkills) > MaxInventorySkills:
		return fmt.Errorf("the inventory lists more than %d skills", MaxInventorySkills)
	}
	switch v.Kind {
	case InventoryFull:
		switch {
		case v.Part > v.Parts || v.Parts > maxInventoryParts || v.Seq < uint64(v.Part):
			return fmt.Errorf("message %d is part %d of %d of a full inventory", v.Seq, v.Part, v.Parts)
		case (v.Host != nil) != (v.Part == 1):
			return errors.New("a full inventory describes its host in its first part, and only there")
		case len(v.Removed) > 0 || len(v.RemovedSkills) > 0:
			return errors.New("a full inventory has no removals: what it does not list is gone")
		}
	case InventoryDelta:
		if v.Parts > 1 {
			return errors.New("a delta has one part; send several deltas")
		}
	case InventoryHeartbeat:
		if v.Host != nil || len(v.Instances)+len(v.Removed)+len(v.Skills)+len(v.RemovedSkills) > 0 {
			return errors.New("the heartbeat of a bridge lists nothing; send a delta")
		}
	default:
		return fmt.Errorf("unknown kind %.80q: want full, delta or heartbeat", v.Kind)
	}
	return nil
}

// Check checks the state of an entry, and that the entry belongs to its bridge. It does not check the announcement.
func (i *InventoryInstance) Check(bridge string) error {
	switch {
	case i.Instance == "" && i.Bridge != "":
		return fmt.Errorf("the entry of the manifest of %.80q has a bridge: it describes a service that runs elsewhere", i.ID)
	case i.Instance == "" && i.State != "":
		return fmt.Errorf("the entry of the manifest of %.80q has a state, which only an instance has", i.ID)
	case i.Instance == "":
		return nil
	case heartbeat.CheckInstance(i.Instance) != nil:
		return heartbeat.CheckInstance(i.Instance)
	case i.Bridge != bridge:
		return fmt.Errorf("instance %s of %.80q has the bridge %.80q, and the inventory is of %.80q", i.Instance, i.ID, i.Bridge, bridge)
	case !i.State.Valid() || i.State == heartbeat.Lost:
		return fmt.Errorf("instance %s of %.80q has the state %.80q, which is not a state that a bridge reports", i.Instance, i.ID, i.State)
	case i.Breaker != nil && !i.Breaker.State.Valid():
		return fmt.Errorf("instance %s of %.80q has the unknown breaker state %.80q", i.Instance, i.ID, i.Breaker.State)
	}
	return nil
}

// Ref identifies the entry.
func (i *InventoryInstance) Ref() InstanceRef { return InstanceRef{i.ID, i.Instance} }
