package jsonrpc

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
)

// BenchmarkIdleConn measures the stacks and the heap of an idle Conn, in bytes: after one call with an answer as large
// as that of initialize, and after many concurrent calls.
func BenchmarkIdleConn(b *testing.B) {
	for _, calls := range []int{1, 64} {
		b.Run(fmt.Sprintf("calls=%d", calls), func(b *testing.B) {
			const conns = 100
			var stacks, heap int
			for b.Loop() {
				wg := new(sync.WaitGroup)
				var ends []*os.File
				s, h := memory()
				for range conns {
					ends = append(ends, idleConn(b, wg, calls)...)
				}
				s2, h2 := memory()
				stacks, heap = stacks+s2-s, heap+h2-h
				for _, f := range ends {
					f.Close()
				}
				wg.Wait()
			}
			b.ReportMetric(float64(stacks)/float64(b.N*conns), "stack-B/conn")
			b.ReportMetric(float64(heap)/float64(b.N*conns), "heap-B/conn")
		})
	}
}

// idleConn runs a Conn, in wg, over pipes, answers some calls at their other ends, and returns the pipes.
func idleConn(b *testing.B, wg *sync.WaitGroup, calls int) []*os.File {
	inR, inW, outR, outW := twoPipes(b)
	c := NewConn(outR, newTryWriter(b, inW), Options{})
	wg.Go(func() { c.Run(b.Context()) }) // ends when outW is closed
	waiters := make([]*Waiter, calls)
	for i := range waiters {
		waiters[i] = NewWaiter()
		c.Start(&Exchange{Method: "initialize", Sink: waiters[i]})
	}
	in := bufio.NewScanner(inR)
	for range waiters {
		in.Scan()
		e, _ := Scan(in.Bytes())
		outW.Write(append(AppendResult(nil, e.ID, fmt.Appendf(nil, `"%s"`, bytes.Repeat([]byte("x"), 8<<10))), '\n'))
	}
	for _, w := range waiters {
		if _, err := w.Result(); err != nil {
			b.Fatal(err)
		}
	}
	return []*os.File{outW, inR, inW, outR}
}

// memory returns how much memory is in use after two garbage collections: the second empties the pools.
func memory() (stacks, heap int) {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.StackInuse), int(m.HeapAlloc)
}
