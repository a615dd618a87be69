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
	strays map[int]bool // seen outside the group; each is told to end once
}

func newFamily(p *os.Process, mark string) *family {
	known.add(p.Pid)
	return &family{leader: p.Pid, mark: mark, strays: make(map[int]bool)}
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
	for _, pid := range f.outside() {
		if !f.strays[pid] {
			f.strays[pid] = true
			signalMarked(pid, f.carries, unix.SIGTERM, unix.SIGCONT)
		}
	}
}

// kill ends everybody.
func (f *family) kill() {
	unix.Kill(-f.leader, unix.SIGKILL)
	for _, pid := range f.outside() {
		f.strays[pid] = true
		signalMarked(pid, f.carries, unix.SIGKILL)
	}
}

// gone reports whether nobody is left, after reaping those that were adopted. It is for after the leader
// was reaped.
func (f *family) gone() bool {
	known.remove(f.leader)
	reap(unix.P_PGID, f.leader)
	for pid := range f.strays {
		reap(unix.P_PID, pid)
	}
	if groupAlive(f.leader) {
		return false
	}
	// Twice, because a list of children that is read while one of them dies may lack another one.
	return len(f.outside()) == 0 && (!adopting() || len(f.outside()) == 0)
}

func (f *family) close() { known.remove(f.leader) }

// carries reports whether a process belongs to the family, by its session or by its mark.
func (f *family) carries(pid int) bool {
	st, ok := readStat(pid)
	if !ok || st.zombie() {
		return false
	}
	return st.session == f.leader || hasMark(pid, f.mark)
}

// outside lists those that belong to the family and are alive. If orphans are ours to adopt, all that the
// leader left behind are our own children by now, or descend from one that is in the family; otherwise
// they can be anywhere.
func (f *family) outside() (pids []int) {
	candidates := allProcesses
	if adopting() {
		candidates = ownChildren
	}
	for _, pid := range candidates() {
		if pid != f.leader && !known.has(pid) && f.carries(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
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

// reap reaps all of our zombies that idType and id name.
func reap(idType, id int) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(idType, id, &info, unix.WEXITED|unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || info.Signo == 0 || idType == unix.P_PID {
			return
		}
	}
}
