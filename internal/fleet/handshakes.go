package fleet

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// handshakes requests the tools of instances.
type handshakes struct {
	*core
	*modules
}

// considerHandshake starts a handshake with an instance if this replica leads, the instance is ready (or belongs to a
// service without instances), and no equal instance has completed one. It is called for every announcement and
// heartbeat, which also sets the pace of retries.
func (hs *handshakes) considerHandshake(x *extension, instance string) {
	if !hs.leads {
		return
	}
	hs.restores.restore(x.id)
	a := x.announcements[instance]
	if a == nil { // a service may send heartbeats under a name that it did not announce
		if a, instance = x.announcements[""], ""; a == nil {
			return
		}
	}
	if i, ok := hs.mon.Instance(x.id, instance); instance != "" && (!ok || i.State != heartbeat.Ready) {
		return
	}
	key := a.handshakeKey()
	s := x.handshakes[key]
	if s != nil && s.done && a.HandshakeHash == "" && a.at.After(s.at) && hs.now.Sub(s.at) > minHandshakeInterval {
		hs.removeHandshake(x, key) // without a hash the tools may have changed since
		s = nil
	}
	if s != nil && (s.done || s.pending) || x.pendingHandshakes() >= maxPendingOf {
		return
	}
	if s == nil {
		s = &handshake{}
		x.handshakes[key] = s
	}
	s.pending = true
	hs.startHandshake(x, s, a)
}

// maxPendingOf limits the handshakes of one extension that are pending, since all extensions share a queue.
const maxPendingOf = 16

func (x *extension) pendingHandshakes() (n int) {
	for _, s := range x.handshakes {
		if s.pending {
			n++
		}
	}
	return n
}

// startHandshake requests the handshake with the instance of a.
func (hs *handshakes) startHandshake(x *extension, s *handshake, a *announced) {
	hs.emit(Handshake{ID: x.id, Subject: a.rpcSubject(), RPC: a.subject(), Chunked: slices.Contains(a.Features, wire.FeatureStream), ext: x, handshake: s})
}

// Offer is the result of initialize, cut to what the catalog can show.
type Offer struct {
	wire.Handshake
	cuts cuts
	size int
	err  error
}

// ParseOffer parses the result of initialize. limit is the size of a spec.
func ParseOffer(answer json.RawMessage, err error, limit int) (o Offer) {
	if err != nil {
		return Offer{err: err}
	}
	if o.Handshake, o.err = wire.ParseHandshake(answer); o.err != nil {
		return o
	}
	if len(o.Tools) == 0 && lacksTools(answer, o.Server) {
		o.Problems = append(o.Problems, wire.Diagnostic{Level: "error", Code: "no_tools",
			Message: "the answer to initialize has no member tools: add it, or let a bridge run the server"})
	}
	if lacksLists(answer, o.Server) {
		o.Problems = append(o.Problems, wire.Diagnostic{Level: "warn", Code: "no_lists",
			Message: "the answer to initialize has no member lists that describes the server's prompts and resources, so MCP clients do not get them: add it, or let a bridge run the server"})
	}
	if over := toolsSize(o.Tools) - limit; over > 0 {
		o.Tools = slices.Clone(o.cuts.cut(o.Tools, over)) // the original array would keep the removed tools
	}
	o.size = toolsSize(o.Tools)
	for _, h := range o.Hooks {
		o.size += len(h)
	}
	if o.Server != nil {
		o.size += len(o.Server.Info) + len(o.Server.Capabilities) + len(o.Server.Instructions)
	}
	return o
}

// lacksTools reports whether an MCP server may have tools that its answer to initialize does not list. A bridge adds the
// member; a server that is itself on the mesh has to.
func lacksTools(answer json.RawMessage, server *wire.Server) bool {
	if server == nil || server.Capabilities != nil && !server.Offers("tools") {
		return false
	}
	_, listed := jsonrpc.Member(answer, "tools")
	return !listed
}

// lacksLists reports whether an MCP server declares prompts or resources that its answer to initialize does not describe. A
// bridge always adds the member: it is an empty object while no list could be read, which has a diagnostic of its own.
func lacksLists(answer json.RawMessage, server *wire.Server) bool {
	if server == nil || server.Lists != (wire.Lists{}) || !server.Offers("prompts") && !server.Offers("resources") {
		return false
	}
	at, _ := jsonrpc.Member(answer, "lists")
	return string(at.In(answer)) != "{}"
}

// checkAnswered returns an error if an instance without a subject of its own was sent initialize, and another one, of another
// version, has answered.
func (x *extension) checkAnswered(s *handshake, version string) error {
	wanted, others := "", false
	for _, a := range x.announcements {
		switch {
		case a.Version == version:
			if x.handshakes[a.handshakeKey()] == s {
				return nil
			}
			others = true
		case x.handshakes[a.handshakeKey()] == s && a.rpcSubject() == a.subject():
			wanted = a.Version
		}
	}
	if wanted == "" || !others {
		return nil
	}
	return fmt.Errorf("an instance of version %s has answered the handshake with version %s", version, wanted)
}

// handshakeDone handles the end of a handshake.
func (hs *handshakes) handshakeDone(x *extension, s *handshake, o Offer) {
	s.pending = false
	if hs.exts[x.id] != x {
		return // removed meanwhile
	}
	err := o.err
	if err == nil {
		err = hs.makeRoom(o.size, hs.now)
	}
	if err == nil {
		err = x.checkAnswered(s, o.ServerVersion)
	}
	if kept := x.offered(); err == nil && kept > 0 && kept+o.size > maxOffers*hs.limits.Spec {
		err = fmt.Errorf("the registry has already stored %d bytes of tools of other versions of this extension", kept)
	}
	if hs.exts[x.id] != x {
		return // evicted
	}
	if err != nil {
		if text := words.Clip(err.Error(), maxReason); s.err != text {
			level := slog.LevelDebug // the state shows the problem already
			if health, _ := hs.mon.Extension(x.id); health.State == heartbeat.Ready {
				level = slog.LevelWarn
			}
			hs.log(level, "handshake failed", "extension", x.id, "error", text)
			s.err = text
			hs.mark(SpecKey(x.id), false)
		}
		return
	}
	s.done, s.err, s.at, s.size, s.cuts = true, "", hs.now, o.size, o.cuts
	s.tools, s.hooks, s.notes, s.server = o.Tools, o.Hooks, o.Problems, o.Server
	hs.account(x, o.size)
	hs.reconsider[x.id] = true
}
