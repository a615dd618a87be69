package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/natsconn"
)

// The name of a bridge is its host's key in the catalog. Two bridges with one name would overwrite each other's reports
// again and again.

const (
	nameProbes      = 3                      // attempts, because a ping may be lost
	nameProbePause  = 500 * time.Millisecond // between two attempts
	maxOtherBridges = 64                     // other bridges to which one run reacts

	maxEncounters = 2 * nameProbes // with each of them: it sends pings and responses
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

func (b *Bridge) identity() identity { return identity{b.runID, b.since} }

// checkNameIsFree returns an error if a bridge with the same name is running.
func (b *Bridge) checkNameIsFree() error {
	for range nameProbes {
		ctx, cancel := context.WithTimeout(context.Background(), nameProbePause)
		_, err := natsconn.Request(ctx, b.nc, b.cfg.Prefix.Control(b.cfg.Name), []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		cancel()
		if err == nil {
			return fmt.Errorf("a bridge named %q is already running on this mesh; choose another --name", b.cfg.Name)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return nil
}

// notePing passes the sender of a ping to guardName if it is another bridge with b's name.
func (b *Bridge) notePing(params []byte) {
	var i identity
	if json.Unmarshal(params, &i) != nil || i.Run == "" {
		return
	}
	select {
	case b.otherBridges <- i:
	default: // the other bridge sends more pings
	}
}

// guardName pings b's own name at the start and after each reconnect, and reacts to the pings of other bridges:
// checkNameIsFree does not detect a bridge that starts at the same time or was disconnected. It returns nil when ctx ends,
// or an error if b must exit.
func (b *Bridge) guardName(ctx context.Context) error {
	answers := make(chan *nats.Msg, 16)
	inbox := natsconn.Inbox(b.nc)
	sub, err := b.nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return fmt.Errorf("subscribing to an inbox: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails only on a closed connection
	connected := b.nc.StatusChanged(nats.CONNECTED)
	defer b.nc.RemoveStatusListener(connected)
	params, err := json.Marshal(b.identity())
	if err != nil {
		return err
	}
	ping := jsonrpc.AppendRequest(nil, []byte("1"), "ping", params)
	encounters := map[string]int{} // per run of another bridge
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
			_ = b.nc.PublishRequest(b.cfg.Prefix.Control(b.cfg.Name), inbox, ping) // an error means that there is no connection
			if probesLeft--; probesLeft > 0 {
				probe.Reset(nameProbePause)
			}
			continue
		case m := <-answers:
			_ = json.Unmarshal(m.Data, &other) // a third-party bridge may send something else, which leaves other empty
		case other.Result = <-b.otherBridges:
		}
		switch i := other.Result; {
		case i.Run == "" || i.Run == b.runID:
		case i.before(b.identity()):
			return fmt.Errorf("another bridge named %q has been running on this mesh since %s; choose another --name", b.cfg.Name, i.Since.Format(time.RFC3339Nano))
		case encounters[i.Run] < maxEncounters && (encounters[i.Run] > 0 || len(encounters) < maxOtherBridges):
			if encounters[i.Run]++; encounters[i.Run] == 1 {
				b.log.Warn("duplicate bridge name: the newer bridge is exiting", "since", i.Since)
			}
			select {
			case b.reportContested <- struct{}{}: // its reports replaced b's
			default:
			}
		}
	}
}
