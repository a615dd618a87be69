package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/catalog"
	"github.com/extmesh/extmesh/internal/pause"
	"github.com/extmesh/extmesh/internal/wire"
)

// bucket is the catalog's KV bucket, accessed as a stream: the KV API supports neither atomic batches nor a TTL on an
// update.
type bucket struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	prefix wire.Prefix
}

// The bucket's limits. Markers must outlive the longest pause of a follower that does not take a snapshot.
const (
	markerTTL   = 10 * time.Minute
	apiTimeout  = 5 * time.Second // for requests that change something
	readTimeout = time.Second     // for requests that are repeated: around an election they can get lost
)

func (b *bucket) stream() string            { return "KV_" + b.prefix.Bucket() }
func (b *bucket) subject(key string) string { return "$KV." + b.prefix.Bucket() + "." + key }

// config is the configuration of the bucket's stream. It equals what the KV API would create, plus
// AllowAtomicPublish, which CreateOrUpdateKeyValue silently turns off. Of an existing stream it changes what the
// catalog depends on and leaves the rest (placement, for example) as the operator configured it.
func (b *bucket) config(existing *jetstream.StreamInfo, replicas int) jetstream.StreamConfig {
	c := jetstream.StreamConfig{Name: b.stream(), Description: "extmesh catalog of " + string(b.prefix),
		Storage: jetstream.FileStorage, MaxMsgs: -1, MaxBytes: -1, MaxMsgSize: -1, MaxConsumers: -1,
		Discard: jetstream.DiscardNew, Duplicates: 2 * time.Minute, DenyDelete: true}
	if existing != nil {
		c = existing.Config
	}
	c.Subjects, c.Replicas, c.MaxMsgsPerSubject = []string{b.subject(">")}, replicas, 1
	c.MaxMsgSize = -1 // one document above it would stop all writes: those of a batch are stored together
	c.AllowRollup, c.AllowDirect, c.AllowMsgTTL, c.AllowAtomicPublish = true, true, true, true
	c.SubjectDeleteMarkerTTL = markerTTL
	c.RePublish = &jetstream.RePublish{Source: b.subject(">"), Destination: b.prefix.CatalogEvents() + ".>"}
	return c
}

// ensure corrects the bucket, or creates it if create allows that, and returns when its stream was created. replicas 0 means 3
// in a cluster, or as many as there are servers for, and 1 on a single server.
func (b *bucket) ensure(ctx context.Context, replicas int, create bool) (created time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	auto := replicas == 0
	if auto {
		if replicas = 1; b.clustered() {
			replicas = 3
		}
	}
	info, err := b.info(ctx)
	if auto && err == nil { // while the connection is down, no cluster is known
		replicas = max(replicas, info.Config.Replicas)
	}
	switch {
	case err == nil && settled(info.Config, b.config(nil, replicas)):
		return info.Created, nil
	case err != nil && !(create && errors.Is(err, jetstream.ErrStreamNotFound)):
		return time.Time{}, err
	}
	if js, level := b.nc.ConnectedServerJetStream(); js && level < levelOfBatches {
		return time.Time{}, fmt.Errorf("the NATS server has version %s, which has no atomic batches: the catalog needs nats-server 2.15.2 or newer", b.nc.ConnectedServerVersion())
	}
	s, err := b.js.CreateOrUpdateStream(ctx, b.config(info, replicas))
	if auto && noRoom(err) { // fall back to the existing number of replicas, or one
		if replicas = 1; info != nil && b.clustered() {
			replicas = info.Config.Replicas
		}
		s, err = b.js.CreateOrUpdateStream(ctx, b.config(info, replicas))
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("creating or updating the stream %s: %w", b.stream(), err)
	}
	return s.CachedInfo().Created, nil
}

// levelOfBatches is the JetStream API level of version 2.12, the first with atomic batches. An older server would ignore that a
// stream is to allow them, and a leaf node without JetStream may have any version.
const levelOfBatches = 2

// noRoom reports whether the cluster has fewer servers than the requested replicas, or the account has no limits for that
// many, as opposed to having no leader for a moment. Only then should fewer be requested.
func noRoom(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && slices.Contains([]jetstream.ErrorCode{codeNoPeers, codeNoResources, codeNoCluster, codeNoTier}, api.ErrorCode)
}

// The server's error codes for a stream with more replicas than servers, or than the account may have.
const (
	codeNoPeers     = 10005 // no suitable peers for placement
	codeNoResources = 10023 // insufficient resources
	codeNoCluster   = 10074 // replicas > 1 not supported in non-clustered mode
	codeNoTier      = 10120 // no limits for this number of replicas
)

// settled reports whether a stream needs no update. It compares only what the catalog depends on: an operator may
// have configured placement or mirrors.
func settled(have, want jetstream.StreamConfig) bool {
	return have.Replicas == want.Replicas && have.MaxMsgsPerSubject == 1 && have.MaxMsgSize == -1 && have.AllowRollup && have.AllowDirect &&
		have.AllowMsgTTL && have.AllowAtomicPublish && have.SubjectDeleteMarkerTTL > 0 &&
		slices.Equal(have.Subjects, want.Subjects) && have.RePublish != nil && *have.RePublish == *want.RePublish
}

// clustered reports whether the connected server is part of a cluster.
func (b *bucket) clustered() bool { return b.nc.ConnectedClusterName() != "" }

func (b *bucket) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	s, err := b.js.Stream(ctx, b.stream())
	if err != nil {
		return nil, err
	}
	return s.CachedInfo(), nil
}

// newest reads the last message of a key, or of all keys with ">", from the stream's leader. The jetstream package
// would use a direct get, which a lagging replica may answer. ok is false if there is no message.
func (b *bucket) newest(ctx context.Context, key string) (ch catalog.Change, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	req, err := json.Marshal(map[string]string{"last_by_subj": b.subject(key)})
	if err != nil {
		return ch, false, err
	}
	m, err := b.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+b.stream(), req)
	if err != nil {
		return ch, false, fmt.Errorf("reading %s: %w", key, err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return ch, false, fmt.Errorf("reading %s: %w", key, err)
	}
	switch e := answer.Error; {
	case e != nil && e.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return ch, false, nil
	case e != nil:
		return ch, false, fmt.Errorf("reading %s: %w", key, e)
	}
	msg := answer.Message
	ch = catalog.Change{Key: strings.TrimPrefix(msg.Subject, b.subject("")), At: catalog.Stamp{Seq: msg.Seq, Time: msg.Time.UnixNano()}}
	h := nats.Header{}
	if len(msg.Header) > 0 {
		if h, err = nats.DecodeHeadersMsg(msg.Header); err != nil {
			return ch, false, fmt.Errorf("reading %s: %w", key, err)
		}
	}
	if !catalog.IsMarker(h) {
		if ch.Value = msg.Data; ch.Value == nil {
			ch.Value = []byte{}
		}
	}
	return ch, true, nil
}

// reader reads the bucket by direct get.
func (b *bucket) reader() catalog.Reader {
	return catalog.Reader{Conn: b.nc, Prefix: b.prefix, Tries: 1} // the loop repeats a failed scan
}

// snapshot is the whole bucket at one sequence.
type snapshot struct {
	changes []catalog.Change
	through catalog.Stamp // every message up to it is included, if it exists
	created time.Time
}

// scan reads the whole bucket by paged direct gets. Any replica may answer them; pages are read again from a lagging
// one until the snapshot has everything that the leader had when the scan began.
func (b *bucket) scan(ctx context.Context) (*snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	info, err := b.info(ctx)
	if err != nil {
		return nil, err
	}
	newest, _, err := b.newest(ctx, catalog.AllKeys)
	if err != nil {
		return nil, err
	}
	s := &snapshot{through: catalog.Stamp{Seq: info.State.LastSeq, Time: info.State.LastTime.UnixNano()}, created: info.Created}
	for seen := uint64(0); ; {
		for page, err := range b.reader().Pages(ctx, catalog.AllKeys, seen+1) {
			if err != nil {
				return nil, err
			}
			s.changes = append(s.changes, page...)
			seen = page[len(page)-1].At.Seq
		}
		if seen >= newest.At.Seq {
			return s, nil
		}
		if !pause.For(ctx, 20*time.Millisecond) {
			return nil, context.Cause(ctx)
		}
	}
}
