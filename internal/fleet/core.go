package fleet

import (
	"log/slog"
	"time"

	"github.com/extmesh/extmesh/internal/liveness"
	"github.com/extmesh/extmesh/internal/wire"
)

// Config is the configuration of a Fleet.
type Config struct {
	Prefix    wire.Prefix
	Heartbeat liveness.Config
	Room      int // bytes of announcements, tools and reports that may be stored
}

// Limits depend on the server that the registry is connected to.
type Limits struct {
	Value int // bytes of a document
	Spec  int // bytes of a spec; less than Value, so that an ordinary state fits into the same page of the catalog
}

// Record is a document of the catalog as the registry has it.
type Record struct {
	Value    []byte
	Revision uint64
}

// Catalog is the registry's copy of the catalog, from which a Fleet restores what an earlier leader has written.
type Catalog interface {
	Synced() bool // there is no gap in the copy
	Get(key string) (Record, bool)
	Each(f func(key string, r Record))
}

// Counters are the messages that were accepted since the start.
type Counters struct {
	Announces, Heartbeats, Suspects uint64
	LagMS                           float64 // average delay from a heartbeat's time stamp to its arrival
}

// core is what all parts of a Fleet share: the extensions, what is known about their instances, and the results of the
// event that is being processed.
type core struct {
	store
	cfg        Config
	limits     Limits
	mon        *liveness.Monitor // of instances
	names      wire.Names
	catalog    Catalog
	reconsider map[string]bool // extensions with a spec to choose again
	unrestored map[string]bool // extensions to restore from the catalog
	evicted    time.Time       // last eviction
	traffic    Counters
	leads      bool      // this replica writes the catalog
	now        time.Time // of the event
	verified   time.Time // when this replica last received its own self-check
	missed     time.Time // when this replica connected again after a time without a connection
	marks      map[string]bool
	effects    []Effect
}

// modules are the parts of a Fleet.
type modules struct {
	natives     *natives
	bridges     *bridges
	inventories *inventories
	probes      *probes
	handshakes  *handshakes
	restores    *restores
}

// verifiedFor is how long a self-check shows that messages arrive: one is sent every 500 ms and may take a second.
const verifiedFor = 1500 * time.Millisecond

// fresh reports whether a self-check was received recently, so that a missing reply was not lost on the way to this
// replica.
func (f *core) fresh() bool { return f.now.Sub(f.verified) < verifiedFor }

// mayReturn reports whether bridges and services may still be about to connect to NATS again, as this replica has: each
// client of a server that was down waits for up to 10 s.
func (f *core) mayReturn() bool { return f.now.Sub(f.missed) < returnTime }

const returnTime = 15 * time.Second

// mark records that the document of a key may have changed; an urgent one is to be written at once.
func (f *core) mark(key string, urgent bool) { f.marks[key] = f.marks[key] || urgent }

// markUrgent writes an extension's state with the next batch.
func (f *core) markUrgent(id string) { f.mark(StateKey(id), true) }

func (f *core) emit(e Effect) { f.effects = append(f.effects, e) }

func (f *core) refuse(what, id string, err error) { f.emit(Refused{what, id, err}) }

func (f *core) log(level slog.Level, message string, args ...any) {
	f.emit(Log{Level: level, Message: message, Args: args})
}

// get is the value of a key of the catalog, nil if it does not exist.
func (f *core) get(key string) []byte {
	r, _ := f.catalog.Get(key)
	return r.Value
}

// SpecKey is the catalog's key of the spec of an extension.
func SpecKey(id string) string { return wire.KindSpec + "." + id }

// StateKey is the catalog's key of the state of an extension.
func StateKey(id string) string { return wire.KindState + "." + id }

// HostKey is the catalog's key of a bridge.
func HostKey(name string) string { return wire.KindHost + "." + name }

// SkillKey is the catalog's key of a skill, by its directory.
func SkillKey(dir string) string { return wire.KindSkill + "." + dir }
