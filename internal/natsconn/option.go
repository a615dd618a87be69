package natsconn

import (
	"math/rand/v2"
	"net"
	"time"

	"github.com/nats-io/nats.go"
)

// Option has nats.Connect make connections of this package. It belongs behind the other options: with a dialer of
// somebody else's, or a server in this process, it leaves all as it is.
func Option() nats.Option {
	return func(o *nats.Options) error {
		if o.CustomDialer != nil || o.Dialer != nil || o.InProcessServer != nil {
			return nil
		}
		o.CustomDialer = &dialer{Dialer: net.Dialer{Timeout: o.Timeout}, limit: o.FlusherTimeout}
		// The dialer looks names up: nats.go does it itself otherwise, and the dialer could not know how many addresses
		// have to share the time.
		o.SkipHostLookup = true
		o.WriteBufferSize = 1 // so that each message gets to the connection at once
		o.FlusherTimeout = 0  // the connection sees to it: nats.go sets a deadline for each message, and takes it away again
		return nil
	}
}

// dialer dials the connections of one nats.Conn, one after another.
type dialer struct {
	net.Dialer
	limit time.Duration // of a write
}

// Dial is net.Dialer.Dial, but tries the addresses of a name in any order, each for its share of the time. That is what
// nats.go does where it has no dialer: a fleet that has one name for its servers is spread over them.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	addresses := []string{address} // also where the name cannot be looked up: the dialer says why
	if host, port, err := net.SplitHostPort(address); err == nil && net.ParseIP(host) == nil {
		if found, err := net.LookupHost(host); err == nil {
			addresses = addresses[:0]
			for _, ip := range found {
				addresses = append(addresses, net.JoinHostPort(ip, port))
			}
		}
	}
	c, err := d.dialAny(network, addresses)
	if err != nil {
		return nil, err
	}
	return newConn(c, d.limit), nil
}

func (d *dialer) dialAny(network string, addresses []string) (c net.Conn, err error) {
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	one := d.Dialer
	one.Timeout /= time.Duration(len(addresses))
	for _, address := range addresses {
		if c, err = one.Dial(network, address); err == nil {
			break
		}
	}
	if tcp, ok := c.(*net.TCPConn); ok && err == nil {
		return raw(tcp)
	}
	return c, err
}
