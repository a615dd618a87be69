package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// A bridge's name is its host's key in the catalog, and one host's only: two bridges that share it would take each
// other's reports back for ever.

const (
	nameTries = 3                      // the question may be lost
	nameWait  = 500 * time.Millisecond // for those who answer
)

// pong is the answer to ping on P.control.<bridge>.
type pong struct {
	Run   string    `json:"run"` // of one run of one bridge
	Since time.Time `json:"since"`
}

// before reports whether the run that answers p keeps the name, and that of q gives way: the one that began first, on
// whatever clocks, so that both come to the same.
func (p pong) before(q pong) bool {
	return cmp.Or(p.Since.Compare(q.Since), cmp.Compare(p.Run, q.Run)) < 0
}

func (b *Bridge) pong() pong { return pong{b.run, b.since} }

var pingMessage = []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)

// claimName is an error if a bridge of the same name is alive already.
func (b *Bridge) claimName() error {
	for range nameTries {
		_, err := b.nc.Request(b.cfg.Prefix.Control(b.cfg.Name), pingMessage, nameWait)
		if err == nil {
			return fmt.Errorf("a bridge named %q is alive on this mesh; choose another --name", b.cfg.Name)
		}
		if !errors.Is(err, nats.ErrTimeout) {
			break
		}
	}
	return nil
}

// keepName looks, once b can be asked itself and after each reconnect, whether another bridge of its name is there:
// claimName finds none where two start at once, or where one was cut off. It returns nil when ctx ends, or an error if b
// has to give way.
func (b *Bridge) keepName(ctx context.Context) error {
	answers := make(chan *nats.Msg, 16)
	inbox := b.nc.NewInbox()
	sub, err := b.nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return fmt.Errorf("subscribing to an inbox: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails on a closed connection only
	connected := b.nc.StatusChanged(nats.CONNECTED)
	defer b.nc.RemoveStatusListener(connected)
	for {
		for range nameTries {
			if err := b.nc.PublishRequest(b.cfg.Prefix.Control(b.cfg.Name), inbox, pingMessage); err != nil {
				break // no connection; there will be another look when there is
			}
			if err := b.othersOfName(ctx, answers); err != nil || ctx.Err() != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-connected:
			if !open {
				connected = nil
			}
		}
	}
}

// othersOfName looks at who answers within nameWait.
func (b *Bridge) othersOfName(ctx context.Context, answers <-chan *nats.Msg) error {
	late := time.NewTimer(nameWait)
	defer late.Stop()
	for {
		var answer struct{ Result pong }
		select {
		case m := <-answers:
			if json.Unmarshal(m.Data, &answer) != nil || answer.Result.Run == "" || answer.Result.Run == b.run {
				continue
			}
		case <-late.C:
			return nil
		case <-ctx.Done():
			return nil
		}
		if answer.Result.before(b.pong()) {
			return fmt.Errorf("another bridge named %q runs on this mesh, since %s; choose another --name", b.cfg.Name,
				answer.Result.Since.Format(time.RFC3339Nano))
		}
		b.log.Warn("another bridge of this name has started, and gives way", "since", answer.Result.Since)
		b.publishReports() // its own took their place
	}
}
