package natsconn

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/rawio"
)

// Option makes nats.Connect use connections of this package, which move to another server when theirs announces lame duck
// mode (see Traffic). It must be the last option: if there is a custom dialer, or an in-process server, it changes nothing.
func Option() nats.Option {
	return func(o *nats.Options) error {
		if o.CustomDialer != nil || o.Dialer != nil || o.InProcessServer != nil {
			return nil
		}
		d := &dialer{Dialer: net.Dialer{Timeout: o.Timeout}, limit: o.FlusherTimeout}
		if o.PingInterval > 0 { // the answers to pings keep the connection from being silent; nats.go would count only them
			pings := time.Duration(cmp.Or(o.MaxPingsOut, nats.DefaultMaxPingOut))
			d.silence, o.MaxPingsOut = o.PingInterval*pings+o.PingInterval/2, math.MaxInt
		}
		o.CustomDialer = d
		previous := o.LameDuckModeHandler
		o.LameDuckModeHandler = func(nc *nats.Conn) {
			if previous != nil {
				previous(nc)
			}
			server := nc.ConnectedServerId()
			// Owned by the connection; ends within seconds. The handler itself would block the connection's other callbacks.
			go d.traffic.move(nc, server)
		}
		onError := o.AsyncErrorCB
		o.AsyncErrorCB = func(nc *nats.Conn, s *nats.Subscription, err error) {
			d.traffic.handleDenial(err)
			switch { // without a handler, nats.go would print the error, too
			case onError != nil:
				onError(nc, s, err)
			case s != nil:
				fmt.Fprintf(os.Stderr, "%v on connection [%s] for subscription on %q\n", err, nc.Opts.Name, s.Subject)
			default:
				fmt.Fprintf(os.Stderr, "%v on connection [%s]\n", err, nc.Opts.Name)
			}
		}
		// The dialer resolves names itself: with nats.go's lookup it would not get the number of addresses that share
		// the timeout.
		o.SkipHostLookup = true
		o.WriteBufferSize = 1 // each message is passed to the connection immediately
		o.FlusherTimeout = 0  // the connection sets the deadline: nats.go would set and clear one for each message
		return nil
	}
}

// OnlyWhile makes a connection with Option, which must come before it, dial only while permitted returns nil.
func OnlyWhile(permitted func() error) nats.Option {
	return func(o *nats.Options) error {
		if d, ok := o.CustomDialer.(*dialer); ok {
			d.Control = func(string, string, syscall.RawConn) error { return permitted() }
		}
		return nil
	}
}

// dialer dials the connections of one nats.Conn, one after the other.
type dialer struct {
	net.Dialer
	limit   time.Duration // of a write
	silence time.Duration // of the server
	traffic Traffic
}

// lookupTimeout limits the lookup of a name. A resolver waits 5 s for a name server that does not answer, and then asks the next. It is
// less than commands have by default, so that their error is about the name.
const lookupTimeout = 8 * time.Second

// Dial is net.Dialer.Dial, but tries the addresses of a name in random order, each for its share of the timeout.
// nats.go does the same without a dialer: it spreads clients over the servers that share a name.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	d.traffic.dialing.Store(true)
	c, err := d.dial(network, address)
	if err != nil {
		d.traffic.dialing.Store(false)
		return nil, err
	}
	c.dialing = &d.traffic.dialing
	return c, nil
}

func (d *dialer) dial(network, address string) (*conn, error) {
	addresses := []string{address} // also if the lookup fails: the dialer returns the reason
	if host, port, err := net.SplitHostPort(address); err == nil && net.ParseIP(host) == nil {
		ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
		defer cancel()
		switch found, err := net.DefaultResolver.LookupHost(ctx, host); {
		case err != nil && ctx.Err() != nil:
			return nil, err // another lookup would take as long
		case err == nil:
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
	n := newConn(c, d.limit)
	n.watch.limit = d.silence
	return n, nil
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
	if err != nil {
		return nil, err
	}
	return rawio.NewConn(c)
}
