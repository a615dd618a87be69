package e2e

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// lossy is a NATS server with connections that can lose one message, selected by the connection's role and the kind of the
// message.
type lossy struct {
	server *server.Server

	mu     sync.Mutex
	phase  int
	loss   loss
	lost   bool
	counts map[loss]int // the keys have nth 0
}

// loss selects the lost message: the nth of its kind that a role sends, or receives, in a phase.
type loss struct {
	role     string
	incoming bool
	kind     string
	phase    int
	nth      int
}

func (l loss) String() string {
	way := "from"
	if l.incoming {
		way = "to"
	}
	return fmt.Sprintf("%d-%s-%s-%s-%d", l.phase, l.kind, way, l.role, l.nth)
}

// kindOf returns the kind of the messages on a subject; "" for messages that are never lost: requests of the test's own
// clients, logs, events.
func kindOf(subject string) string {
	token := strings.Split(subject, ".")
	switch {
	case strings.HasPrefix(subject, "$KV."):
		return "write"
	case strings.HasPrefix(subject, "$JS."):
		return "jetstream"
	case token[0] == "_INBOX":
		return "answer"
	case len(token) < 3 || token[0] != "ext":
		return ""
	case token[1] == "control":
		return "ping"
	case token[1] != "registry" && token[2] == "rpc":
		return "handshake"
	case token[1] != "registry" || token[2] == "rpc":
		return ""
	case token[2] == "heartbeat" && token[3] == "registry":
		return "pulse"
	}
	return token[2]
}

// passes counts a message. It returns false for the message that is to be lost.
func (l *lossy) passes(role string, incoming bool, subject string) bool {
	kind := kindOf(subject)
	if kind == "" {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	this := loss{role: role, incoming: incoming, kind: kind, phase: l.phase}
	l.counts[this]++
	if this.nth = l.counts[this]; this == l.loss {
		l.lost = true
		return false
	}
	return true
}

func (l *lossy) setPhase(phase int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = phase
}

func (l *lossy) connect(t testing.TB, role string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect("", nats.Timeout(time.Minute), nats.Name(role), nats.InProcessServer(&lossyDialer{l, role}), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

type lossyDialer struct {
	l    *lossy
	role string
}

func (d *lossyDialer) InProcessConn() (net.Conn, error) {
	c, err := d.l.server.InProcessConn()
	if err != nil || d.role == "" {
		return c, err
	}
	side := func(incoming bool) frameFilter {
		return frameFilter{pass: func(subject string) bool { return d.l.passes(d.role, incoming, subject) }}
	}
	return &lossyConn{Conn: c, out: side(false), in: side(true)}, nil
}

// lossyConn filters both directions of a connection. Each direction is used by one goroutine at a time, as nats.go does.
type lossyConn struct {
	net.Conn
	out, in frameFilter
	read    []byte // filtered, but not read yet
}

func (c *lossyConn) Write(p []byte) (int, error) {
	if whole := c.out.filter(p); len(whole) > 0 {
		if _, err := c.Conn.Write(whole); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (c *lossyConn) Read(p []byte) (int, error) {
	for len(c.read) == 0 {
		n, err := c.Conn.Read(p)
		c.read = c.in.filter(p[:n])
		if err != nil && len(c.read) == 0 {
			return 0, err
		}
	}
	n := copy(p, c.read)
	c.read = c.read[n:]
	return n, nil
}

// frameFilter splits one direction of the NATS protocol into frames.
type frameFilter struct {
	pass func(subject string) bool
	rest []byte // an incomplete frame
}

// filter appends p to the input, and returns the complete frames that pass.
func (s *frameFilter) filter(p []byte) (whole []byte) {
	s.rest = append(s.rest, p...)
	for {
		end := bytes.Index(s.rest, []byte("\r\n"))
		if end < 0 {
			return whole
		}
		size := end + 2
		subject, payload, carries := frame(string(s.rest[:end]))
		if carries {
			size += payload + 2
		}
		if len(s.rest) < size {
			return whole
		}
		if !carries || s.pass(subject) {
			whole = append(whole, s.rest[:size]...)
		}
		s.rest = s.rest[size:]
	}
}

// frame parses the first line of a frame. In the four frames with a message, the last field is the size of the payload.
func frame(line string) (subject string, payload int, carries bool) {
	f := strings.Fields(line)
	if len(f) < 3 {
		return "", 0, false
	}
	switch strings.ToUpper(f[0]) {
	case "PUB", "HPUB", "MSG", "HMSG":
		n, err := strconv.Atoi(f[len(f)-1])
		return f[1], n, err == nil
	}
	return "", 0, false
}
