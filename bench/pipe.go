package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/extmesh/extmesh/internal/load"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// barePipe is a child and two pipes, with nothing in between: the least that calling a child can cost.
type barePipe struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (s *stage) startPipe(child string) (*barePipe, error) {
	cmd := exec.Command(s.self)
	cmd.Env = append(os.Environ(), "BENCH_ROLE="+child)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &barePipe{cmd, in, bufio.NewReaderSize(out, 64<<10)}, cmd.Start()
}

func (p *barePipe) close() {
	p.in.Close()
	p.cmd.Wait()
}

// measure keeps callers requests in the pipe for a while. With one it is a round trip; with many, one
// goroutine writes and one reads, and what is written has been gathered, as fast a host would do.
func (p *barePipe) measure(callers int, span time.Duration, args []byte) (load.Result, error) {
	line := append(rpc.AppendRequest(nil, []byte("1"), "tools/echo", args), '\n')
	if callers == 1 {
		return measure(1, span, func() error {
			if _, err := p.in.Write(line); err != nil {
				return err
			}
			return p.skipLine()
		})
	}
	free := make(chan struct{}, callers) // places in the pipe
	for range callers {
		free <- struct{}{}
	}
	written := make(chan int, callers) // how many lines went out with each write
	var werr error
	began := time.Now()
	go func() { // ends when the span is over; the reader below waits for its end
		defer close(written)
		var batch []byte
		for time.Since(began) < span {
			<-free
			n := 1 + len(free)
			for range n - 1 {
				<-free
			}
			batch = batch[:0]
			for range n {
				batch = append(batch, line...)
			}
			written <- n // before the write, which may block until the reader has read
			if _, werr = p.in.Write(batch); werr != nil {
				return
			}
		}
	}()
	answers := 0
	for n := range written {
		for range n {
			if err := p.skipLine(); err != nil {
				return load.Result{}, errors.Join(err, werr)
			}
			answers++
			free <- struct{}{}
		}
	}
	return load.Result{Took: make([]time.Duration, answers), Elapsed: time.Since(began)}, werr
}

func (p *barePipe) skipLine() error {
	for {
		_, err := p.out.ReadSlice('\n')
		if err != bufio.ErrBufferFull {
			return err
		}
	}
}
