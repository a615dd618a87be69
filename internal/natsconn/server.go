package natsconn

import (
	"net/url"

	"github.com/nats-io/nats.go"
)

// Server is the address of the server that nc is connected to, for messages: without its user, which can be a token. It is ""
// without a connection.
func Server(nc *nats.Conn) string {
	u, err := url.Parse(nc.ConnectedUrl())
	if err != nil {
		return ""
	}
	u.User = nil
	return u.String()
}
