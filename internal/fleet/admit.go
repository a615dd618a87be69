package fleet

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
)

// The limits of what announcements and handshakes make a replica keep.
const (
	maxAnnouncements     = 4096            // announcements of one id, by instance
	maxPerID             = 4 << 20         // bytes of the announcements of one id
	maxOffers            = 2               // times the size of a spec: tools of one id, for the shown version and its successor
	minHandshakeInterval = 5 * time.Second // minimum interval of handshakes requested only because of an announcement
)

// admit adds an announcement to its extension. It returns nil if the announcement was refused.
func (na *natives) admit(a *announced, now time.Time) *extension {
	err := na.makeRoomFor(a, now)
	x, known := na.exts[a.ID]
	if err == nil {
		err = na.checkOwner(a)
	}
	if err == nil {
		err = na.checkSubject(a)
	}
	if err == nil {
		err = na.checkParent(a)
	}
	if err == nil {
		err = x.roomFor(a)
	}
	if err == nil {
		if c, fresh := na.mon.Declare(a.ID, now); fresh {
			na.changed(c)
		}
		if !na.mon.Known(a.ID) {
			err = errors.New("the registry has reached its limit of extensions")
		}
	}
	switch {
	case err != nil && a.from == "" && !a.implied:
		na.refuseAnnouncement(a.ID, a.Instance, err, now)
		return nil
	case err != nil:
		na.refuse("announce", a.ID, err)
		return nil
	}
	delete(na.unannounced, a.ID)
	acceptAnnouncement(na, x, a, now)
	if x != nil && na.repeats(x, a) {
		x.announcements[a.Instance].at = a.at
		na.bridges.seenBridge(a.Bridge, now)
		return x
	}
	if x == nil {
		x = newExtension(a.ID, na.now)
		na.exts[x.id] = x
		na.account(x, extensionRoom)
	}
	if !a.implied {
		x.fromCatalog = false
		for name, old := range x.announcements {
			if !old.implied {
				break // either all announcements are implied or none
			}
			na.removeAnnouncement(x, name)
		}
	}
	na.raiseAlerts(x, a, now)
	na.addAnnouncement(x, a)
	na.setLocation(x, a.Instance, &location{host: a.Host, bridge: a.Bridge, native: a.from == ""})
	na.bridges.seenBridge(a.Bridge, now)
	na.mark(StateKey(x.id), !known) // the state contains host and bridge
	na.reconsider[x.id] = true
	return x
}

// makeRoomFor makes room for what an announcement adds to those that are stored. Without memory, one that replaces another of
// the same size must still be accepted.
func (na *natives) makeRoomFor(a *announced, now time.Time) error {
	grows := a.size
	if x := na.exts[a.ID]; x == nil {
		grows += extensionRoom
	} else if before := x.announcements[a.Instance]; before != nil {
		grows -= before.size
	}
	if grows <= 0 {
		return nil
	}
	return na.makeRoom(grows, now)
}

// repeats reports whether an announcement contains nothing new. If one instance has not announced itself, the whole
// mesh is requested to announce again, so most announcements repeat. One without a handshake_hash is not a
// repetition, because its tools have to be requested.
func (na *natives) repeats(x *extension, a *announced) bool {
	before, at := x.announcements[a.Instance], x.locations[a.Instance]
	return before != nil && !before.implied && before.digest == a.digest && a.digest != "" && before.from == a.from &&
		a.HandshakeHash != "" && !x.fromCatalog && at != nil
}

// addAnnouncement stores an announcement.
func (na *natives) addAnnouncement(x *extension, a *announced) {
	na.removeAnnouncement(x, a.Instance)
	x.announcements[strings.Clone(a.Instance)] = a
	na.account(x, a.size)
	na.prune(x)
}

// instanceRestarted handles an instance that restarted under the same name: without a handshake_hash its tools may
// have changed.
func (na *natives) instanceRestarted(x *extension, instance string) {
	if a := x.announcements[instance]; a != nil && a.HandshakeHash == "" {
		if s := x.handshakes[a.handshakeKey()]; s != nil && s.done {
			na.removeHandshake(x, a.handshakeKey())
		}
	}
}

// checkOwner ensures that an rpc subject belongs to one id. Of two, the one with the mesh's own prefix wins, then the
// lexically first.
func (f *core) checkOwner(a *announced) error {
	owner := a.conflictingID()
	theirs := f.exts[owner]
	if theirs == nil || !theirs.serves(a.subject()) {
		return nil
	}
	own := func(id string) bool { return f.cfg.Prefix.RPC(id) == a.subject() }
	if own(owner) && !own(a.ID) || own(owner) == own(a.ID) && owner < a.ID {
		return fmt.Errorf("subject %s belongs to extension %s", a.subject(), owner)
	}
	f.refuse("announce", owner, fmt.Errorf("subject %s belongs to extension %s", a.subject(), a.ID))
	if c, ok := f.mon.Forget(owner); ok {
		f.changed(c)
	}
	return nil
}

// checkSubject refuses what a bridge lists with another subject than an instance of the same id that is up, and not on this bridge:
// calls go to the subject of one of them, and permissions do not limit what a bridge lists.
func (f *core) checkSubject(a *announced) error {
	x := f.exts[a.ID]
	if x == nil || a.from == "" {
		return nil
	}
	for name, other := range x.announcements {
		i, ok := f.mon.Instance(a.ID, name)
		if other.from != a.from && ok && isUpAndNamed(i) && !other.implied && other.subject() != a.subject() {
			return fmt.Errorf("instance %s of %s is up with the subject %s, not %s: stop it first", name, a.ID, other.subject(), a.subject())
		}
	}
	return nil
}

func (x *extension) serves(subject string) bool {
	if x.shown != nil && x.shown.subject() == subject {
		return true
	}
	for _, a := range x.announcements {
		if a.subject() == subject {
			return true
		}
	}
	return false
}

// checkParent ensures that the bridge of a member has also announced its parent, or lists its manifest: that of a service on NATS.
func (na *natives) checkParent(a *announced) error {
	parent := na.exts[a.Parent]
	if a.Parent == "" || parent == nil || len(parent.announcements) == 0 {
		return nil
	}
	for _, p := range parent.announcements {
		if p.Bridge == a.Bridge {
			return nil
		}
	}
	if b := na.bridges.byName[a.from]; b != nil && b.inventory.Lists(wire.InstanceRef{ID: a.Parent}) {
		return nil
	}
	return fmt.Errorf("parent %s has not been announced by bridge %q", a.Parent, a.Bridge)
}
