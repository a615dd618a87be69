package localmesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/wire"
)

// earlierTimeout limits forgetEarlier; the server is in this process.
const earlierTimeout = 5 * time.Second

// forgetEarlier removes from the catalog what bridges other than own left there in an earlier extctl up. Nothing of them
// runs any more, but as long as the catalog lists their tools, they claim names. What own left there is removed by the
// registry when own does not list it. Native services stay.
func forgetEarlier(ctx context.Context, nc *nats.Conn, prefix wire.Prefix, own string) error {
	ctx, cancel := context.WithTimeout(ctx, earlierTimeout)
	defer cancel()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	kv, err := js.KeyValue(ctx, prefix.Bucket())
	if errors.Is(err, jetstream.ErrBucketNotFound) { // the first run
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the catalog of earlier runs: %w", err)
	}
	left, err := keysOfOthers(ctx, kv, own)
	for _, key := range left {
		err = errors.Join(err, kv.Purge(ctx, key))
	}
	if err != nil {
		return fmt.Errorf("removing extensions of earlier runs from the catalog: %w", err)
	}
	return nil
}

// keysOfOthers returns the keys of the catalog that concern bridges other than own only.
func keysOfOthers(ctx context.Context, kv jetstream.KeyValue, own string) (keys []string, err error) {
	w, err := kv.Watch(ctx, "*.>", jetstream.IgnoreDeletes())
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.Stop() }() // fails only on a closed connection
	for {
		var e jetstream.KeyValueEntry
		select {
		case e = <-w.Updates():
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if e == nil { // all that there was
			return keys, nil
		}
		switch kind, name, _ := strings.Cut(e.Key(), "."); {
		case kind == wire.KindHost && name != own:
			keys = append(keys, e.Key())
		case kind == wire.KindState && ofOthers(e.Value(), own):
			keys = append(keys, e.Key(), wire.KindSpec+"."+name)
		}
	}
}

// ofOthers reports whether all instances of a state ran on bridges other than own.
func ofOthers(value []byte, own string) bool {
	var d wire.StateDoc
	if json.Unmarshal(value, &d) != nil {
		return false
	}
	for _, i := range d.Instances {
		if i.Bridge == "" || i.Bridge == own {
			return false
		}
	}
	return len(d.Instances) > 0
}
