package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natsconn"
)

// The name of a bridge is its host's key in the catalog. Two bridges with one name would overwrite each other's reports
// again and again.

const (
	nameProbes     = 3                      // attempts, because a ping may be lost
	nameProbePause = 500 * time.Millisecond // between two attempts
	nameProbeEvery = time.Minute
)

// identity is the response to ping on P.control.<bridge>, and the params of the ping that a bridge sends to its own name.
type identity struct {
	Run   string    `json:"run"` // identifies one run of one bridge
	Since time.Time `json:"since"`
}

// before reports whether the run i keeps the name and other must exit: the one that started first, so that both come to
// the same result even if their clocks differ.
func (i identity) before(other identity) bool {
	return cmp.Or(i.Since.Compare(other.Since), cmp.Compare(i.Run, other.Run)) < 0
}

// nameGuard keeps two bridges with one name from running at the same time.
type nameGuard struct {
	nc      *nats.Conn
	log     *slog.Logger
	name    string
	subject string        // of control requests to the name
	self    identity      // of this run
	others  chan identity // other bridges with this name that sent a ping
	contest func()        // called when another bridge may have overwritten this one's report
	met     time.Time     // when it was last called
}

func newNameGuard(nc *nats.Conn, cfg Config, contest func()) *nameGuard {
	return &nameGuard{nc: nc, log: cfg.Logger, name: cfg.Name, subject: cfg.Prefix.Control(cfg.Name), contest: contest, others: make(chan identity, 4),
		self: identity{nuid.Next(), time.Now().UTC().Truncate(time.Millisecond)}}
}

// checkIsFree returns an error if a bridge with the same name is running.
func (g *nameGuard) checkIsFree() error {
	for range nameProbes {
		ctx, cancel := context.WithTimeout(context.Background(), nameProbePause)
		_, err := natsconn.Request(ctx, g.nc, g.subject, []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		cancel()
		if err == nil {
			return fmt.Errorf("a bridge named %q is already running on this mesh; choose another --name", g.name)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return nil
}

// notePing passes the sender of a ping to run if it is another bridge with the same name.
func (g *nameGuard) notePing(params []byte) {
	var i identity
	if json.Unmarshal(params, &i) != nil || i.Run == "" {
		return
	}
	select {
	case g.others <- i:
	default: // the other bridge sends more pings
	}
}

// run pings the bridge's own name at the start, after each reconnect and each minute, and reacts to the pings of other bridges:
// checkIsFree does not detect a bridge that starts at the same time or was disconnected. It returns nil when ctx ends,
// or an error if this bridge must exit.
func (g *nameGuard) run(ctx context.Context) error {
	answers := make(chan *nats.Msg, 16)
	inbox := natsconn.Inbox(g.nc)
	sub, err := g.nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return fmt.Errorf("subscribing to an inbox: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails only on a closed connection
	connected := g.nc.StatusChanged(nats.CONNECTED)
	defer g.nc.RemoveStatusListener(connected)
	params, err := json.Marshal(g.self)
	if err != nil {
		return err
	}
	ping := jsonrpc.AppendRequest(nil, []byte("1"), "ping", params)
	probe := time.NewTimer(0)
	defer probe.Stop()
	for probesLeft := nameProbes; ; {
		var other struct{ Result identity }
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-connected:
			if !open {
				connected = nil
				continue
			}
			probesLeft = nameProbes
			probe.Reset(0)
			continue
		case <-probe.C:
			_ = g.nc.PublishRequest(g.subject, inbox, ping) // an error means that there is no connection
			if probesLeft--; probesLeft > 0 {
				probe.Reset(nameProbePause)
			} else { // a link between servers may come up without a change of this connection
				probe.Reset(nameProbeEvery)
			}
			continue
		case m := <-answers:
			_ = json.Unmarshal(m.Data, &other) // a third-party bridge may send something else, which leaves other empty
		case other.Result = <-g.others:
		}
		if err := g.meet(other.Result); err != nil {
			return err
		}
	}
}

// meet reacts to a message of another run. All messages within a contestPause count as one: the inventory is published
// after it.
func (g *nameGuard) meet(other identity) error {
	switch {
	case other.Run == "" || other.Run == g.self.Run:
	case other.before(g.self):
		return fmt.Errorf("another bridge named %q has been running on this mesh since %s; choose another --name", g.name, other.Since.Format(time.RFC3339Nano))
	case time.Since(g.met) >= contestPause:
		g.met = time.Now()
		g.log.Warn("duplicate bridge name: the newer bridge is exiting", "since", other.Since)
		g.contest()
	}
	return nil
}
