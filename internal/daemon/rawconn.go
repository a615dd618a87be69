//go:build linux && !race

package daemon

import (
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/rawio"
)

// rawDialer dials TCP connections that read and write without telling Go's scheduler of each system call (ADR 0011).
type rawDialer struct{ net.Dialer }

// useRaw has a connection dialled raw. It leaves names to the dialer: nats.go looks them up itself otherwise, and the
// dialer could not know how many addresses have to share the time.
func useRaw(o *nats.Options) {
	o.CustomDialer = &rawDialer{net.Dialer{Timeout: o.Timeout}}
	o.SkipHostLookup = true
}

// Dial is net.Dialer.Dial, but tries the addresses of a name in any order, each for its share of the time. That is what
// nats.go does where it has no dialer: a fleet that has one name for its servers is spread over them.
func (d *rawDialer) Dial(network, address string) (net.Conn, error) {
	addresses := []string{address} // also where the name cannot be looked up: the dialer says why
	if host, port, err := net.SplitHostPort(address); err == nil && net.ParseIP(host) == nil {
		if found, err := net.LookupHost(host); err == nil {
			addresses = addresses[:0]
			for _, ip := range found {
				addresses = append(addresses, net.JoinHostPort(ip, port))
			}
		}
	}
	return d.dialAny(network, addresses)
}

func (d *rawDialer) dialAny(network string, addresses []string) (c net.Conn, err error) {
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	one := d.Dialer
	one.Timeout /= time.Duration(len(addresses))
	for _, address := range addresses {
		if c, err = one.Dial(network, address); err == nil {
			break
		}
	}
	if tcp, ok := c.(*net.TCPConn); ok && err == nil {
		return newRawConn(tcp)
	}
	return c, err
}

// rawConn is a TCP connection that package rawio reads and writes. What cannot be done at once is waited for in Go's
// poller, as with any other connection, and deadlines and Close end that.
type rawConn struct {
	net.Conn
	rc   syscall.RawConn
	r, w half
}

// half is one direction. It is a struct so that the func that RawConn wants is made once.
type half struct {
	mu  sync.Mutex // one read, one write at a time
	op  func(fd uintptr) bool
	p   []byte
	n   int
	err error
}

func newRawConn(tcp *net.TCPConn) (net.Conn, error) {
	rc, err := tcp.SyscallConn()
	if err != nil {
		tcp.Close()
		return nil, err
	}
	c := &rawConn{Conn: tcp, rc: rc}
	c.r.op, c.w.op = c.r.read, c.w.write
	return c, nil
}

// read is done unless it has to wait.
func (h *half) read(fd uintptr) bool {
	n, err := rawio.Read(fd, h.p)
	h.n, h.err = n, os.NewSyscallError("read", err)
	return err != syscall.EAGAIN
}

// write is done when all is written.
func (h *half) write(fd uintptr) bool {
	for h.n < len(h.p) {
		n, err := rawio.Write(fd, h.p[h.n:])
		if err != nil {
			h.err = os.NewSyscallError("write", err)
			return err != syscall.EAGAIN
		}
		h.n += n
	}
	h.err = nil
	return true
}

// do does one read or write of p. wait is RawConn's, which knows how to wait.
func (h *half) do(p []byte, wait func(func(uintptr) bool) error) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.p, h.n, h.err = p, 0, nil
	err := wait(h.op)
	h.p = nil
	if err == nil {
		err = h.err
	}
	return h.n, err
}

// Read is net.TCPConn.Read.
func (c *rawConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.r.do(p, c.rc.Read)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, c.explain("read", err)
}

// Write is net.TCPConn.Write.
func (c *rawConn) Write(p []byte) (int, error) {
	n, err := c.w.do(p, c.rc.Write)
	return n, c.explain("write", err)
}

// explain makes an error look as the connection's own do.
func (c *rawConn) explain(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if e, ok := err.(*net.OpError); ok { // what RawConn says of its waiting
		err = e.Err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
