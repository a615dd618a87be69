package child

import (
	"os"

	"golang.org/x/sys/unix"
)

// family is what a process leaves behind: the members of its group, and those that left the group or the
// session and still carry its mark. Methods are called by one goroutine.
type family struct {
	leader int
	mark   string
	termed bool
	strays map[int]pidfd // found outside the group
}

func newFamily(p *os.Process, mark string) *family {
	known.add(p.Pid)
	return &family{leader: p.Pid, mark: mark, strays: make(map[int]pidfd)}
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
	f.hunt()
	for _, p := range f.strays {
		p.signal(unix.SIGKILL)
	}
}

// hunt looks for strays and sends signals to those it finds for the first time. From then on they are held
// by a pidfd: a process that is dying has no environment any more, and one can change it.
func (f *family) hunt(signals ...unix.Signal) (found bool) {
	candidates := allProcesses
	if adopting() {
		candidates = ownChildren // all that the leader left behind by now, or their parents in the family
	}
	for _, pid := range candidates() {
		if _, held := f.strays[pid]; held || pid == f.leader || known.has(pid) || !f.carries(pid) {
			continue
		}
		p, ok := openPidfd(pid)
		if !ok || !f.carries(pid) { // it may have become another's number in between
			p.close()
			continue
		}
		f.strays[pid] = p
		found = true
		for _, sig := range signals {
			p.signal(sig)
		}
	}
	return found
}

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
	// Twice, because a list of children that is read while one of them dies may lack another one.
	if f.hunt(unix.SIGTERM, unix.SIGCONT) || adopting() && f.hunt(unix.SIGTERM, unix.SIGCONT) {
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
}

// carries reports whether a process belongs to the family, by its session or by its mark.
func (f *family) carries(pid int) bool {
	st, ok := readStat(pid)
	if !ok || st.zombie() {
		return false
	}
	return st.session == f.leader || hasMark(pid, f.mark)
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
