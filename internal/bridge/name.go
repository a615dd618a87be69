package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/natsconn"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// A bridge's name is its host's key in the catalog, and one host's only: two bridges that share it would take each
// other's reports back for ever.

const (
	nameProbes      = 3                      // the question may be lost
	nameProbePause  = 500 * time.Millisecond // between two times
	maxOtherBridges = 64                     // others that are made anything of, in one run

	maxEncounters = 2 * nameProbes // with each: it asks, and answers
)

// identity is the answer to ping on P.control.<bridge>, and what a bridge that asks for its own name says of itself.
type identity struct {
	Run   string    `json:"run"` // of one run of one bridge
	Since time.Time `json:"since"`
}

// before reports whether the run i keeps the name, and other gives way: the one that began first, on whatever clocks, so
// that both come to the same.
func (i identity) before(other identity) bool {
	return cmp.Or(i.Since.Compare(other.Since), cmp.Compare(i.Run, other.Run)) < 0
}

func (b *Bridge) identity() identity { return identity{b.runID, b.since} }

// claimName is an error if a bridge of the same name is alive already.
func (b *Bridge) checkNameIsFree() error {
	for range nameProbes {
		ctx, cancel := context.WithTimeout(context.Background(), nameProbePause)
		_, err := natsconn.Request(ctx, b.nc, b.cfg.Prefix.Control(b.cfg.Name), []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		cancel()
		if err == nil {
			return fmt.Errorf("a bridge named %q is alive on this mesh; choose another --name", b.cfg.Name)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return nil
}

// pinged takes note of who asks, if it is another bridge of b's name.
func (b *Bridge) notePing(params []byte) {
	var i identity
	if json.Unmarshal(params, &i) != nil || i.Run == "" {
		return
	}
	select {
	case b.otherBridges <- i:
	default: // it asks again
	}
}

// keepName looks, once b can be asked itself and after each reconnect, whether another bridge of its name is there, and
// hears of those that look: claimName finds none where two start at once, or where one was cut off. It returns nil when
// ctx ends, or an error if b has to give way.
func (b *Bridge) guardName(ctx context.Context) error {
	answers := make(chan *nats.Msg, 16)
	inbox := natsconn.Inbox(b.nc)
	sub, err := b.nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return fmt.Errorf("subscribing to an inbox: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails on a closed connection only
	connected := b.nc.StatusChanged(nats.CONNECTED)
	defer b.nc.RemoveStatusListener(connected)
	params, err := json.Marshal(b.identity())
	if err != nil {
		return err
	}
	ping := rpc.AppendRequest(nil, []byte("1"), "ping", params)
	encounters := map[string]int{} // how often, by run
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
			_ = b.nc.PublishRequest(b.cfg.Prefix.Control(b.cfg.Name), inbox, ping) // without a connection there is nobody to meet
			if probesLeft--; probesLeft > 0 {
				probe.Reset(nameProbePause)
			}
			continue
		case m := <-answers:
			_ = json.Unmarshal(m.Data, &other) // of another make, if it is none
		case other.Result = <-b.otherBridges:
		}
		switch i := other.Result; {
		case i.Run == "" || i.Run == b.runID:
		case i.before(b.identity()):
			return fmt.Errorf("another bridge named %q runs on this mesh, since %s; choose another --name", b.cfg.Name, i.Since.Format(time.RFC3339Nano))
		case encounters[i.Run] < maxEncounters && (encounters[i.Run] > 0 || len(encounters) < maxOtherBridges):
			if encounters[i.Run]++; encounters[i.Run] == 1 {
				b.log.Warn("another bridge of this name has started, and gives way", "since", i.Since)
			}
			select {
			case b.reportContested <- struct{}{}: // its reports took the place of b's
			default:
			}
		}
	}
}
