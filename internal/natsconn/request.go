package natsconn

import (
	"context"
	"crypto/rand"

	"github.com/nats-io/nats.go"
)

// Inbox returns a reply subject under the connection's inbox prefix that cannot be guessed. nats.go's own inboxes can
// be guessed from earlier ones: a NUID is the previous one plus a constant, and the tokens of Conn.Request come from
// a generator with 2^31 seeds.
func Inbox(nc *nats.Conn) string { return nc.NewInbox() + "." + rand.Text() }

// Request is nats.Conn.RequestWithContext with a reply subject from Inbox. Use it for requests that programs other
// than the NATS server answer, so that the responder of one request cannot answer the next one.
func Request(ctx context.Context, nc *nats.Conn, subject string, data []byte) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, err // and nothing is sent
	}
	inbox := Inbox(nc)
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails on a closed connection only, which has none
	if err := nc.PublishRequest(subject, inbox, data); err != nil {
		return nil, err
	}
	return sub.NextMsgWithContext(ctx)
}
