package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/bench/internal/proc"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// up starts extctl up over a directory of the stage.
func (s *stage) up(dir, data string) (url string, cmd *exec.Cmd, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return "", nil, err
	}
	cmd = exec.Command(filepath.Join(s.bin, "extctl"), "up", filepath.Join(s.dir, dir), "--listen", addr,
		"--data", filepath.Join(s.dir, data), "--log-level", "error")
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	s.stop = append(s.stop, func() { end(cmd) })
	return "nats://" + addr, cmd, s.await(10*time.Second, func() bool {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// solo makes the directory of one extension of this id, with the echo child.
func (s *stage) solo(id string) error { return s.manifest(id, id, "echo", s.self) }

// start measures how long it takes from the start of a program to the first successful call, less what the child
// takes by itself.
func (s *stage) start(t *table) error {
	const embedded, external = "ms from start to first call beyond the child's own start-up, embedded", "ms from start to first call beyond the child's own start-up, external server"
	if !t.wants(embedded) && !t.wants(external) {
		return nil
	}
	if err := s.solo("solo"); err != nil {
		return err
	}
	var child, ext, emb []float64
	for i := range t.opt.rounds {
		own, err := s.childStart()
		if err != nil {
			return err
		}
		began := time.Now()
		bridge, err := s.startBridge("solo", "solo")
		if err != nil {
			return err
		}
		if err := firstCall(s.nc, "ext.solo.rpc"); err != nil {
			return err
		}
		ext = append(ext, ms(time.Since(began)-own))
		end(bridge)

		began = time.Now()
		url, up, err := s.up("solo", fmt.Sprintf("solo-data-%d", i))
		if err != nil {
			return err
		}
		var nc *nats.Conn
		// Where it is to listen is tried before NATS starts: a connection may meet that.
		if s.await(10*time.Second, func() bool { nc, err = nats.Connect(url); return err == nil }) != nil {
			return err
		}
		if err := firstCall(nc, "ext.solo.rpc"); err != nil {
			return err
		}
		emb = append(emb, ms(time.Since(began)-own))
		nc.Close()
		end(up)
		child = append(child, ms(own))
	}
	how := fmt.Sprintf("the child alone takes %.1f ms", median(child))
	t.row(embedded, emb, "%.1f", "≤ 60", "12", how+"; a new data directory each time")
	t.row(external, ext, "%.1f", "≤ 25", "8", how)
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// childStart is how long the child takes from its start to its answer to initialize, with nothing in between.
func (s *stage) childStart() (time.Duration, error) {
	began := time.Now()
	p, err := s.startPipe("echo")
	if err != nil {
		return 0, err
	}
	defer p.close()
	if _, err := p.in.Write(append(rpc.AppendRequest(nil, []byte("1"), "initialize", nil), '\n')); err != nil {
		return 0, err
	}
	err = p.skipLine()
	return time.Since(began), err
}

// firstCall calls until somebody answers.
func firstCall(nc *nats.Conn, subject string) error {
	request := rpc.AppendRequest(nil, []byte("1"), "tools/echo", arguments(256))
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Microsecond) {
		_, err := nc.Request(subject, request, time.Second)
		if err == nil || !errors.Is(err, nats.ErrNoResponders) || time.Now().After(deadline) {
			return err
		}
	}
}

// memory measures a bridge with one child: idle, and under a crowd.
func (s *stage) memory(t *table) error {
	const idle, peak = "MB of a bridge with one idle child", "MB of a bridge with one child, peak under 64 callers"
	if !t.wants(idle) && !t.wants(peak) {
		return nil
	}
	if err := s.solo("lone"); err != nil {
		return err
	}
	bridge, err := s.startBridge("lone", "lone")
	if err != nil {
		return err
	}
	defer end(bridge)
	if err := firstCall(s.nc, "ext.lone.rpc"); err != nil {
		return err
	}
	time.Sleep(5 * time.Second) // the figure is of a bridge that has settled
	now, _ := proc.Memory(bridge.Process.Pid)
	if err := forgetPeak(bridge.Process.Pid); err != nil {
		return err
	}
	if _, err := measure(64, 5*time.Second, func() error {
		_, err := s.client.CallExt(context.Background(), "lone", "tools/echo", arguments(256))
		return err
	}); err != nil {
		return err
	}
	_, most := proc.Memory(bridge.Process.Pid)
	t.row(idle, []float64{now}, "%.1f", "≤ 22", "14", "resident; 5 s after its first call")
	t.row(peak, []float64{most}, "%.1f", "≤ 32", "20", "resident, at most; 256 B for 5 s")
	return nil
}

// tiny is a child as small as they come: it answers initialize and waits, with its pipes open.
const tiny = `read -r line; id=${line#*'"id":'}; id=${id%%[,\}]*}
printf '{"jsonrpc":"2.0","id":%s,"result":{"server_version":"1","tools":[{"name":"echo"},{"name":"big"}],"hooks":[]}}\n' "$id"
exec cat`

// fleet measures what many idle extensions cost their bridge.
func (s *stage) fleet(t *table) error {
	name := fmt.Sprintf("MB of a bridge with %d idle extensions", t.opt.fleet)
	if !t.wants(name) {
		return nil
	}
	m, err := s.idle(t.opt.fleet)
	if err != nil {
		return err
	}
	bare, line, err := s.role("micro", fmt.Sprintf("BENCH_SERVICES=%d", t.opt.fleet))
	if err != nil || line != "ready" {
		return fmt.Errorf("bare services: %q, %w", line, err)
	}
	services, _ := proc.Memory(bare.Process.Pid)
	must, aim := "≤ 90", "65"
	if t.opt.fleet != 1000 {
		must, aim = "", ""
	}
	t.row(name, []float64{m.mb}, "%.1f", must, aim, fmt.Sprintf("over the children; all were ready %.1f s after the start; as many bare micro services alone take %.1f MB", m.ready.Seconds(), services))
	t.row(fmt.Sprintf("%% of one core for %d idle extensions", t.opt.fleet), []float64{m.cpu}, "%.2f", "≤ 1", "", "the bridge, over 20 s")
	return nil
}

// idleCost is what a bridge with idle extensions takes.
type idleCost struct {
	mb, cpu float64 // megabytes; per cent of a core
	ready   time.Duration
}

// idle runs n idle extensions under a bridge of their own.
func (s *stage) idle(n int) (idleCost, error) {
	dir := fmt.Sprintf("fleet-%d", n)
	for i := range n {
		if err := s.manifest(dir, fmt.Sprintf("tiny%d", i), "", "sh", "-c", tiny); err != nil {
			return idleCost{}, err
		}
	}
	began := time.Now()
	bridge, err := s.startBridge(dir, dir)
	if err != nil {
		return idleCost{}, err
	}
	defer end(bridge)
	if err := s.await(3*time.Minute, func() bool { return s.readyOn(dir) == n }); err != nil {
		return idleCost{}, fmt.Errorf("not all extensions came up: %w", err)
	}
	c := idleCost{ready: time.Since(began)}
	const settle, span = 10 * time.Second, 20 * time.Second
	time.Sleep(settle)
	used := proc.CPU(bridge.Process.Pid)
	time.Sleep(span)
	c.cpu = 100 * float64(proc.CPU(bridge.Process.Pid)-used) / float64(span)
	c.mb, _ = proc.Memory(bridge.Process.Pid)
	return c, nil
}

// readyOn counts a bridge's ready instances, by the catalog's word.
func (s *stage) readyOn(bridge string) int {
	n := 0
	for _, e := range s.catalog.All() {
		if e.State == nil {
			continue
		}
		for _, i := range e.State.Instances {
			if i.Bridge == bridge && i.State == "ready" {
				n++
			}
		}
	}
	return n
}
