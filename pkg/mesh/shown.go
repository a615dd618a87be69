package mesh

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// shown is what the catalog shows of the extensions that a Client calls. Without a catalog it shows nothing.
type shown struct{ catalog *Catalog }

// get returns an extension; ok is false if the catalog lacks it.
func (s shown) get(id string) (e Extension, ok bool) {
	if s.catalog == nil {
		return e, false
	}
	return s.catalog.Get(id)
}

// returns reports whether the catalog shows that the extension is on its way back.
func (s shown) returns(id string) bool {
	e, ok := s.get(id)
	return ok && wire.IsReturning(e.State)
}

// instance returns the subject of a random ready instance with the version that the catalog shows; "" if all ready
// instances have one version, or have no subjects of their own.
func (s shown) instance(t *target) string {
	e, ok := s.get(t.id)
	if !ok || !slices.Contains(e.Spec.Features, wire.FeatureInstance) {
		return ""
	}
	var ready []string
	mixed := false
	for _, i := range e.State.Instances {
		switch {
		case i.State != heartbeat.Ready:
		case i.Version != e.Spec.Version:
			mixed = true
		case i.Instance != "":
			ready = append(ready, i.Instance)
		}
	}
	if !mixed || len(ready) == 0 {
		return ""
	}
	return t.subject + "." + ready[rand.IntN(len(ready))]
}

// justNow limits how long ago an extension may have been lost for a call to wait for it.
const justNow = 5 * time.Second

// mayReturn reports whether an extension without a subscription was running a moment ago: during the restart of a child the
// catalog may still show it ready, or already lost.
func (s shown) mayReturn(id string) bool {
	e, ok := s.get(id)
	if !ok {
		return false
	}
	return e.State.State == heartbeat.Ready || wire.IsReturning(e.State) ||
		e.State.State == heartbeat.Lost && time.Since(e.State.Since).Abs() < justNow // the registry's clock may be ahead
}

// hasStopped reports whether the catalog shows that the extension takes no calls and is not on its way back.
func (s shown) hasStopped(id string) bool {
	e, ok := s.get(id)
	return ok && e.State.State != "" && !s.mayReturn(id)
}

// explain adds the state in the catalog to the error of an extension without a subscription.
func (s shown) explain(id string, err error) error {
	e, ok := s.get(id)
	if !ok || e.State.State == "" {
		return err
	}
	reason := e.State.Reason
	text := string(e.State.State)
	if reason != "" {
		text += ": " + reason
	}
	d := rpc.Details{Ran: rpc.RanNo, State: string(e.State.State), Reason: reason}
	if e.State.State == heartbeat.Ready {
		return rpc.NewError(rpc.CodeUnavailable, d, "no instance of %s is subscribed, though the catalog still shows it ready", id)
	}
	return rpc.NewError(rpc.CodeUnavailable, d, "%s takes no calls (%s)", id, text)
}
