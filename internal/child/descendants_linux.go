package child

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// descendants finds and ends the descendants of a process: the members of its group, processes that left the group or the
// session but still have its marker, and all processes in its cgroup, if it has one. Methods are called by one goroutine.
type descendants struct {
	leader  int
	marker  string
	cgroup  cgroup
	termed  bool
	empty   bool          // the group has no process any more, and gets none
	outside map[int]pidfd // found outside the group
	started int           // when the leader was started: an older process is not a descendant
	unsure  time.Time     // since when every scan has found a process that could not be classified
}

func newDescendants(p *os.Process, marker string, s *sysAttr) *descendants {
	known.Store(p.Pid, nil)
	leader, _ := readStat(p.Pid) // exists, since it is not reaped yet; a start time of 0 excludes no process
	return &descendants{leader: p.Pid, marker: marker, cgroup: s.cgroup, started: leader.started}
}

// terminateGroup sends SIGTERM to the group, once. SIGCONT follows, so that SIGTERM is already pending when a stopped
// process continues.
func (d *descendants) terminateGroup() {
	if !d.termed {
		d.termed = true
		unix.Kill(-d.leader, unix.SIGTERM)
		unix.Kill(-d.leader, unix.SIGCONT)
	}
}

// terminate sends SIGTERM to all descendants, once.
func (d *descendants) terminate() {
	d.terminateGroup()
	d.find(unix.SIGTERM, unix.SIGCONT)
}

// kill sends SIGKILL to all descendants.
func (d *descendants) kill() {
	if !d.empty {
		unix.Kill(-d.leader, unix.SIGKILL)
	}
	d.cgroup.kill()
	d.find()
	for _, p := range d.outside {
		p.signal(unix.SIGKILL)
	}
}

// find searches for descendants outside the group and sends signals to those that it finds for the first time. It keeps
// a pidfd of each, since an exiting process has no environment any more, and a process can change its environment.
func (d *descendants) find(signals ...unix.Signal) (found, unclear bool) {
	candidates := allProcesses
	if adopting() {
		candidates = ownChildren // orphaned descendants are now children of this process; the others have a parent that is one
	}
	for _, pid := range append(candidates(), d.cgroup.pids()...) {
		_, held := d.outside[pid]
		if _, waits := known.Load(pid); waits || held || pid == d.leader {
			continue
		}
		switch d.classify(pid) {
		case unrelated:
			continue
		case unclassified:
			unclear = true
			continue
		}
		p, ok := openPidfd(pid)
		if !ok || d.classify(pid) != descendant { // the id may have been used again for another process
			p.close()
			continue
		}
		if d.outside == nil { // needed by few processes
			d.outside = make(map[int]pidfd)
		}
		d.outside[pid] = p
		found = true
		for _, sig := range signals {
			p.signal(sig)
		}
	}
	return found, unclear
}

// relation is the relation of a process to the leader.
type relation int

const (
	unrelated relation = iota
	descendant
	unclassified // it has no environment: not yet, or not any more. The children of one that exits are adopted in a moment
)

// classify determines by session, cgroup and marker whether a process outside the group is a descendant.
func (d *descendants) classify(pid int) relation {
	st, ok := readStat(pid)
	switch {
	case !ok, st.zombie(), st.flags&flagKernel != 0, st.group == d.leader:
		return unrelated
	case st.session == d.leader, d.cgroup.has(pid):
		return descendant
	}
	env, err := readEnviron(pid)
	switch {
	case err != nil:
		return unrelated // it belongs to another user, or forbids reading
	case environHasMarker(env, d.marker):
		return descendant
	case len(env) == 0 && st.flags&flagExiting != 0 && adopting(),
		len(env) == 0 && st.started >= d.started && !emptyEnviron(pid, st):
		return unclassified
	}
	return unrelated
}

// unclassifiedWait is how long a process without an environment is seen before it counts as unrelated. Such a process is
// usually in an exec, which takes long if the program must be read from a busy disk. One that hangs while it exits must not
// delay the end of all others.
const unclassifiedWait = 4 * time.Second

// gone reports whether no descendant is left, after reaping those that were adopted. It is called after the leader was
// reaped. It sends SIGTERM to descendants that it finds.
func (d *descendants) gone() bool {
	alive := false
	if !d.empty { // otherwise the number may be another process's by now
		known.Delete(d.leader)
		reap(unix.P_PGID, d.leader)
		d.empty = unix.Kill(-d.leader, 0) == unix.ESRCH
		alive = !d.empty && groupAlive(d.leader)
	}
	for pid, p := range d.outside {
		if p.exited() {
			p.reap()
			p.close()
			delete(d.outside, pid)
		}
	}
	if len(d.outside) > 0 || alive {
		return false
	}
	scans := 1
	if adopting() {
		scans = 2 // a list of children that is read while one of them exits may lack another one
	}
	for range scans {
		switch found, unclear := d.find(unix.SIGTERM, unix.SIGCONT); {
		case found:
			d.unsure = time.Time{}
			return false
		case !unclear:
			d.unsure = time.Time{}
		case d.unsure.IsZero():
			d.unsure = time.Now()
			return false
		case time.Since(d.unsure) < unclassifiedWait:
			return false
		}
	}
	if d.cgroup.populated() {
		return false
	}
	if !d.empty {
		reap(unix.P_PGID, d.leader) // members that have exited since the first call
	}
	return true
}

func (d *descendants) close() {
	known.Delete(d.leader)
	for _, p := range d.outside {
		p.close()
	}
	d.cgroup.remove()
}

// groupAlive reports whether a group that exists has members other than zombies. Zombies may stay for ever under an init process that
// does not reap. If the processes cannot be listed, it has.
func groupAlive(pgid int) bool {
	all := allProcesses()
	for _, pid := range all {
		if st, ok := readStat(pid); ok && st.group == pgid && !st.zombie() {
			return true
		}
	}
	return all == nil
}
