package child

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// family is what a process leaves behind: the members of its group, those that left the group or the session
// and still carry its mark, and all that is in its cgroup, if it has one. Methods are called by one
// goroutine.
type family struct {
	leader int
	mark   string
	cgroup cgroup
	termed bool
	strays map[int]pidfd // found outside the group
	born   int           // when the leader was started: whoever is older is no descendant
	unsure time.Time     // since when every look has seen somebody of whom nothing can be told
}

func newFamily(p *os.Process, mark string, s *sysAttr) *family {
	known.add(p.Pid)
	leader, _ := readStat(p.Pid) // not yet reaped, so it is there; 0 excludes nobody
	return &family{leader: p.Pid, mark: mark, cgroup: s.cgroup, born: leader.started}
}

// terminateGroup asks the group to end, once. SIGCONT comes second, so that a stopped process finds SIGTERM
// waiting when it wakes up.
func (f *family) terminateGroup() {
	if !f.termed {
		f.termed = true
		unix.Kill(-f.leader, unix.SIGTERM)
		unix.Kill(-f.leader, unix.SIGCONT)
	}
}

// terminate asks everybody to end, once.
func (f *family) terminate() {
	f.terminateGroup()
	f.hunt(unix.SIGTERM, unix.SIGCONT)
}

// kill ends everybody.
func (f *family) kill() {
	unix.Kill(-f.leader, unix.SIGKILL)
	f.cgroup.kill()
	f.hunt()
	for _, p := range f.strays {
		p.signal(unix.SIGKILL)
	}
}

// hunt looks for strays and sends signals to those it finds for the first time. From then on they are held
// by a pidfd: a process that is dying has no environment any more, and one can change it.
func (f *family) hunt(signals ...unix.Signal) (found, unclear bool) {
	candidates := allProcesses
	if adopting() {
		candidates = ownChildren // all that the leader left behind by now, or their parents in the family
	}
	for _, pid := range append(candidates(), f.cgroup.pids()...) {
		if _, held := f.strays[pid]; held || pid == f.leader || known.has(pid) {
			continue
		}
		switch f.judge(pid) {
		case stranger:
			continue
		case dying:
			f.unsure, unclear = time.Time{}, true
			continue
		case cannotTell:
			unclear = true
			continue
		}
		p, ok := openPidfd(pid)
		if !ok || f.judge(pid) != relative { // it may have become another's number in between
			p.close()
			continue
		}
		if f.strays == nil { // most never have one
			f.strays = make(map[int]pidfd)
		}
		f.strays[pid] = p
		found = true
		for _, sig := range signals {
			p.signal(sig)
		}
	}
	return found, unclear
}

// kinship is what can be told about a process.
type kinship int

const (
	stranger kinship = iota
	relative
	dying      // if it was one its children are too, and will be ours in a moment
	cannotTell // it has no environment yet
)

// judge tells whether a process belongs to the family without being in its group, by its session, its cgroup
// or its mark.
func (f *family) judge(pid int) kinship {
	st, ok := readStat(pid)
	switch {
	case !ok, st.zombie(), st.flags&flagKernel != 0, st.group == f.leader:
		return stranger
	case st.session == f.leader, f.cgroup.has(pid):
		return relative
	}
	env, err := readEnviron(pid)
	switch {
	case err != nil:
		return stranger // another user's
	case environHasMark(env, f.mark):
		return relative
	case st.flags&flagExiting != 0 && adopting():
		return dying
	case len(env) == 0 && st.started >= f.born && !bare(pid, st):
		return cannotTell
	}
	return stranger
}

// doubtFor is how long looks may see a process that has no environment yet before it counts as a stranger. To become
// another program takes a moment, and where the program has to be read from a busy disk, many.
const doubtFor = 4 * time.Second

// gone reports whether nobody is left, after reaping those that were adopted. It is for after the leader
// was reaped. Strays that it finds are asked to end.
func (f *family) gone() bool {
	known.remove(f.leader)
	reap(unix.P_PGID, f.leader)
	for pid, p := range f.strays {
		if p.exited() {
			p.reap()
			p.close()
			delete(f.strays, pid)
		}
	}
	if len(f.strays) > 0 || groupAlive(f.leader) {
		return false
	}
	looks := 1
	if adopting() {
		looks = 2 // a list of children that is read while one of them dies may lack another one
	}
	for range looks {
		switch found, unclear := f.hunt(unix.SIGTERM, unix.SIGCONT); {
		case found:
			f.unsure = time.Time{}
			return false
		case !unclear:
			f.unsure = time.Time{}
		case f.unsure.IsZero():
			f.unsure = time.Now()
			return false
		case time.Since(f.unsure) < doubtFor:
			return false
		}
	}
	if f.cgroup.populated() {
		return false
	}
	reap(unix.P_PGID, f.leader) // those that died since
	return true
}

func (f *family) close() {
	known.remove(f.leader)
	for _, p := range f.strays {
		p.close()
	}
	f.cgroup.remove()
}

// groupAlive reports whether a group has members other than zombies, which an init that does not reap may
// keep for ever.
func groupAlive(pgid int) bool {
	if unix.Kill(-pgid, 0) == unix.ESRCH {
		return false
	}
	for _, pid := range allProcesses() {
		if st, ok := readStat(pid); ok && st.group == pgid && !st.zombie() {
			return true
		}
	}
	return false
}
