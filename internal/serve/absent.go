package serve

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
)

// A call with a call id and without frames that takes longer than absentAfter gets a probe every absentEvery: a message to the caller's
// connection that the caller ignores. The server's status that there is no responder means that the caller has gone, and
// cancels the call.
const (
	absentAfter = 30 * time.Second
	absentEvery = 5 * time.Second
)

// probeOf is the subject that reaches the connection of a caller but none of its calls. It exists only for the inboxes of
// the NATS clients, PREFIX.NUID.TOKEN, which subscribe to PREFIX.NUID.*: a caller that subscribes to one exact subject
// would be taken for gone.
func probeOf(reply string) (subject string, ok bool) {
	connection, token := cutLast(reply)
	_, nuid := cutLast(connection)
	if token == "" || len(nuid) == len(connection) || !isNUID(nuid) {
		return "", false
	}
	return connection + ".-", true
}

// callerOf returns the sender of a request, as far as its reply subject shows it: _INBOX.USER of
// _INBOX.USER.CONNECTION.TOKEN, or the connection of any other subject with three parts; "" for fewer parts.
func callerOf(reply string) string {
	connection, _ := cutLast(reply)
	parts := strings.Count(reply, ".") + 1
	switch {
	case parts < 3:
		return ""
	case parts > 3 && strings.HasPrefix(reply, nats.InboxPrefix):
		user := strings.IndexByte(reply[len(nats.InboxPrefix):], '.')
		return reply[:len(nats.InboxPrefix)+user]
	}
	return connection
}

// cutLast cuts off the last part of a subject.
func cutLast(subject string) (before, last string) {
	i := strings.LastIndexByte(subject, '.')
	return subject[:max(i, 0)], subject[i+1:]
}

func isNUID(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return len(s) == 22
}

// probeCallers sends a probe for each long call without frames.
func (n *Publisher) probeCallers(now time.Time) {
	for _, s := range n.streams.list() {
		s.calls.each(func(c *call) {
			if c.named && !c.stream && !c.claimed.Load() && now.Sub(c.began) >= n.absentAfter {
				c.probe()
			}
		})
	}
}

// probe sends a probe.
func (c *call) probe() {
	subject, ok := probeOf(c.reply)
	if !ok {
		return
	}
	c.probed.Store(true)
	msg := nats.NewMsg(subject)
	msg.Header.Set(wire.HeaderFrame, wire.FrameKeepalive)
	if msg.Reply = c.s.inst.pub.streams.ackSubject(c); msg.Reply == "" { // it has ended
		return
	}
	if err := c.s.nc.PublishMsg(msg); err != nil {
		c.s.inst.pub.opt.Logger.Debug("a probe of a caller was not sent", "extension", c.s.inst.ID(), "error", err)
	}
}
