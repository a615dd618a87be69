package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/extmesh/extmesh/internal/natsconn"
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
	c.AllowRollup, c.AllowDirect, c.AllowMsgTTL, c.AllowAtomicPublish = true, true, true, true
	c.SubjectDeleteMarkerTTL = markerTTL
	c.RePublish = &jetstream.RePublish{Source: b.subject(">"), Destination: b.prefix.CatalogEvents() + ".>"}
	return c
}

// ensure creates or corrects the bucket and returns when its stream was created. replicas 0 means 3 in a cluster, or
// as many as there are servers for, and 1 on a single server.
func (b *bucket) ensure(ctx context.Context, replicas int) (created time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	auto := replicas == 0
	if auto {
		if replicas = 1; b.clustered() {
			replicas = 3
		}
	}
	info, err := b.info(ctx)
	switch {
	case err == nil && settled(info.Config, b.config(nil, replicas)):
		return info.Created, nil
	case err != nil && !errors.Is(err, jetstream.ErrStreamNotFound):
		return time.Time{}, err
	}
	s, err := b.js.CreateOrUpdateStream(ctx, b.config(info, replicas))
	if auto && noRoom(err) { // fall back to the existing number of replicas, or one
		if replicas = 1; info != nil {
			replicas = info.Config.Replicas
		}
		s, err = b.js.CreateOrUpdateStream(ctx, b.config(info, replicas))
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("creating or updating the stream %s: %w", b.stream(), err)
	}
	return s.CachedInfo().Created, nil
}

// noRoom reports whether the cluster has fewer servers than the requested replicas, as opposed to having no leader
// for a moment. Only then should fewer be requested.
func noRoom(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == codeNoPeers || api.ErrorCode == codeNoResources)
}

// The server's error codes for a stream with more replicas than servers.
const (
	codeNoPeers     = 10005 // no suitable peers for placement
	codeNoResources = 10023 // insufficient resources
)

// settled reports whether a stream needs no update. It compares only what the catalog depends on: an operator may
// have configured placement or mirrors.
func settled(have, want jetstream.StreamConfig) bool {
	return have.Replicas == want.Replicas && have.MaxMsgsPerSubject == 1 && have.AllowRollup && have.AllowDirect &&
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

// record is one message of the bucket. The record of a deleted key is its marker.
type record struct {
	key     string
	value   []byte
	seq     uint64
	deleted bool
	at      time.Time // server time; distinguishes a recreated stream from the old one
}

// newest reads the last message of a key, or of all keys with ">", from the stream's leader. The jetstream package
// would use a direct get, which a lagging replica may answer. ok is false if there is no message.
func (b *bucket) newest(ctx context.Context, key string) (r record, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	req, err := json.Marshal(map[string]string{"last_by_subj": b.subject(key)})
	if err != nil {
		return r, false, err
	}
	m, err := b.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+b.stream(), req)
	if err != nil {
		return r, false, fmt.Errorf("reading %s: %w", key, err)
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
		return r, false, fmt.Errorf("reading %s: %w", key, err)
	}
	switch e := answer.Error; {
	case e != nil && e.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return r, false, nil
	case e != nil:
		return r, false, fmt.Errorf("reading %s: %w", key, e)
	}
	msg := answer.Message
	r = record{value: msg.Data, seq: msg.Seq, at: msg.Time}
	r.key = strings.TrimPrefix(msg.Subject, b.subject(""))
	if len(msg.Header) > 0 {
		h, err := nats.DecodeHeadersMsg(msg.Header)
		if err != nil {
			return r, false, fmt.Errorf("reading %s: %w", key, err)
		}
		r.deleted = isMarker(h)
	}
	return r, true, nil
}

func isMarker(h nats.Header) bool {
	return h.Get("KV-Operation") != "" || h.Get("Nats-Marker-Reason") != ""
}

// parseEvent reads a stored message as delivered by a direct get or by republishing.
func parseEvent(key string, m *nats.Msg) (record, error) {
	seq, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
	if err != nil {
		return record{}, fmt.Errorf("catalog key %.100q: no sequence", key)
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp"))
	if err != nil {
		return record{}, fmt.Errorf("catalog key %.100q: no time stamp", key)
	}
	return record{key: key, value: m.Data, seq: seq, at: at, deleted: isMarker(m.Header)}, nil
}

// snapshot is the whole bucket at one sequence.
type snapshot struct {
	records []record
	last    uint64
	created time.Time
}

const pageSize = 500

// scan reads the whole bucket by paged direct gets. Any replica may answer them; pages are read again from a lagging
// one until the snapshot has everything that the leader had when the scan began.
func (b *bucket) scan(ctx context.Context) (*snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	info, err := b.info(ctx)
	if err != nil {
		return nil, err
	}
	newest, _, err := b.newest(ctx, ">")
	if err != nil {
		return nil, err
	}
	s := &snapshot{last: info.State.LastSeq, created: info.Created}
	seen := uint64(0)
	for next := uint64(1); ; {
		page, more, err := b.page(ctx, next)
		if err != nil {
			return nil, err
		}
		s.records = append(s.records, page...)
		if n := len(page); n > 0 {
			seen = page[n-1].seq
			next = seen + 1
		}
		if more && len(page) > 0 {
			continue
		}
		if seen >= newest.seq {
			s.last = max(s.last, seen)
			return s, nil
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return nil, context.Cause(ctx)
		}
	}
}

func (b *bucket) page(ctx context.Context, from uint64) (page []record, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	inbox := natsconn.Inbox(b.nc)
	sub, err := b.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection, which has no subscriptions
	req, err := json.Marshal(map[string]any{"next_by_subj": b.subject(">"), "seq": from, "batch": pageSize})
	if err != nil {
		return nil, false, err
	}
	if err := b.nc.PublishRequest("$JS.API.DIRECT.GET."+b.stream(), inbox, req); err != nil {
		return nil, false, err
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return nil, false, fmt.Errorf("reading the bucket: %w", err)
		}
		switch status := m.Header.Get("Status"); status {
		case "":
		case "204":
			return page, m.Header.Get("Nats-Num-Pending") != "0", nil
		case "404":
			return page, false, nil
		default:
			return nil, false, fmt.Errorf("reading the bucket: %s %s", status, m.Header.Get("Description"))
		}
		subject := m.Header.Get("Nats-Subject")
		if len(subject) <= len(b.subject("")) {
			return nil, false, fmt.Errorf("reading the bucket: unexpected subject %q", subject)
		}
		r, err := parseEvent(subject[len(b.subject("")):], m)
		if err != nil {
			return nil, false, err
		}
		page = append(page, r)
	}
}

// sleep waits for d and reports true, or false as soon as ctx is done.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
