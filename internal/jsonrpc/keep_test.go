package jsonrpc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// keeper is a Sink that keeps the replies, and releases every third.
type keeper struct {
	id   string
	got  []kept
	done chan struct{} // closed with the last
	left int
}

type kept struct {
	message []byte
	want    string
	release func()
}

func (k *keeper) Deliver(_ *Exchange, r Reply) {
	want := string(r.AppendTo(nil, []byte(k.id)))
	message, release := r.Keep([]byte(k.id))
	k.got = append(k.got, kept{message, want, release})
	if n := len(k.got); n%3 == 0 { // the next line uses the buffer
		k.check(n - 1)
	}
	if k.left--; k.left == 0 {
		close(k.done)
	}
}

func (k *keeper) check(i int) {
	if string(k.got[i].message) != k.got[i].want {
		panic(fmt.Sprintf("answer %d of %d bytes has changed: %.100q", i, len(k.got[i].want), k.got[i].message))
	}
	k.got[i].release()
	k.got[i].release = nil
}

// shreds is a reader that returns a random number of bytes.
type shreds struct {
	r *bytes.Reader
	n *rand.Rand
}

func (p shreds) Read(b []byte) (int, error) {
	return p.r.Read(b[:min(len(b), 1+p.n.IntN(300<<10))])
}

// TestKeep: a kept message does not change while other lines are read and kept.
func TestKeep(t *testing.T) {
	const seeds, answers = 6, 12
	for _, id := range []string{"7", `"0123456789012345678901234567890"`} {
		for seed := range uint64(seeds) {
			t.Run(fmt.Sprintf("id=%d,seed=%d", len(id), seed), func(t *testing.T) {
				t.Parallel()
				n := rand.New(rand.NewPCG(seed, 1))
				var text strings.Builder
				for i := range answers {
					body := strings.Repeat(string(rune('a'+i)), []int{10, keepBuffer - 60, keepBuffer + 1, 1 << 20, 3 << 20}[n.IntN(5)])
					switch n.IntN(3) {
					case 0:
						fmt.Fprintf(&text, `{"jsonrpc":"2.0","id":%d,"result":"%s"}`+"\n", i+1, body)
					case 1:
						fmt.Fprintf(&text, `{"result":{"x":"%s"},"jsonrpc":"2.0","id":"%d"}`+"\r\n", body, i+1)
					default: // its id cannot be replaced in place
						fmt.Fprintf(&text, `{"jsonrpc":"2.0","id":%d,"result":1,"result":"%s"}`+"\n", i+1, body)
					}
				}
				c := NewConn(shreds{bytes.NewReader([]byte(text.String())), n}, io.Discard, Options{})
				k := &keeper{id: id, done: make(chan struct{}), left: answers}
				for range answers {
					c.Start(&Exchange{Method: "m", Sink: k})
				}
				c.Run(context.Background())
				<-k.done
				for i, kept := range k.got {
					if kept.release != nil {
						k.check(i)
					}
				}
			})
		}
	}
}
