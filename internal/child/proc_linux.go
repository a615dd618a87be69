package child

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxEnviron is how much of a process's environment is searched for a marker, which environ puts first.
const maxEnviron = 1 << 20

// stat contains the fields of /proc/PID/stat that are used here.
type stat struct {
	state                  byte
	parent, group, session int
	flags                  int
	ticks                  int // of processor time, its own and that of children that it has reaped
	threads                int
	started                int // in clock ticks since the system's start
	environ                int // the address where its environment ends: 0 during an exec, or without permission
	resident               int // pages of memory
}

// The kernel's PF_EXITING and PF_KTHREAD.
const (
	flagExiting = 0x4
	flagKernel  = 0x200000
)

// zombie reports whether the whole process has exited, so that its children have another parent. The main thread can be a
// zombie while other threads still run and keep the children that they started.
func (s stat) zombie() bool {
	return s.state == 'X' || s.state == 'x' || s.state == 'Z' && s.threads <= 1
}

func readStat(pid int) (s stat, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, false
	}
	return parseStat(b)
}

// parseStat parses "PID (comm) STATE PPID …" (proc_pid_stat(5)), where comm may contain any bytes, including parentheses.
func parseStat(b []byte) (s stat, ok bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return s, false
	}
	fields := strings.Fields(string(b[i+1:]))
	if len(fields) < 20 {
		return s, false
	}
	s.state = fields[0][0]
	for n, to := range map[int]*int{1: &s.parent, 2: &s.group, 3: &s.session, 6: &s.flags, 17: &s.threads, 19: &s.started} {
		v, err := strconv.Atoi(fields[n])
		if err != nil {
			return s, false
		}
		*to = v
	}
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		v, _ := strconv.Atoi(field) // 0 if it is not a number
		s.ticks += v
	}
	if len(fields) > 21 {
		s.resident, _ = strconv.Atoi(fields[21]) // 0 if it is not a number
	}
	if len(fields) > 48 { // since Linux 3.5
		s.environ, _ = strconv.Atoi(fields[48]) // 0 if it is not a number
	}
	return s, true
}

// hasMarker reports whether a process was started with markerVar=marker in its environment. A marker that ends in a dot
// matches all that begin with it.
func hasMarker(pid int, marker string) bool {
	env, _ := readEnviron(pid)
	return environHasMarker(env, marker)
}

// readEnviron reads a process's environment. It is empty, without an error, for a zombie, for a process that is exiting,
// and during an exec. (For the first two, newer kernels return ESRCH.) If the main thread has ended but the process still
// runs, it is read from another thread.
func readEnviron(pid int) ([]byte, error) {
	env, err := readLimited(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil && !errors.Is(err, unix.ESRCH) || len(env) > 0 {
		return env, err
	}
	if st, ok := readStat(pid); !ok || st.state != 'Z' || st.zombie() {
		return nil, nil
	}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/environ", pid)) // the pattern is well-formed
	for _, t := range threads {
		if env, err := readLimited(t); err == nil && len(env) > 0 {
			return env, nil
		}
	}
	return nil, nil
}

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxEnviron))
}

// emptyEnviron reports whether a process has an environment that contains nothing; before is its stat from before the
// environment was read. During an exec the environment's end address is 0, and afterwards it is a different one.
func emptyEnviron(pid int, before stat) bool {
	after, ok := readStat(pid)
	return ok && after.environ != 0 && after.environ == before.environ
}

func environHasMarker(env []byte, marker string) bool {
	want := []byte(markerVar + "=" + marker)
	if !strings.HasSuffix(marker, ".") {
		want = append(want, 0)
	}
	for kv := range bytes.SplitAfterSeq(env, []byte{0}) {
		if bytes.HasPrefix(kv, want) {
			return true
		}
	}
	return false
}

// allProcesses returns all processes except this one.
func allProcesses() (pids []int) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	self := os.Getpid()
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid != self {
			pids = append(pids, pid)
		}
	}
	return pids
}

// ownChildren returns the children of this process, including adopted ones.
func ownChildren() (pids []int) { return childrenOf(os.Getpid()) }

// childrenOf returns the children of a process.
func childrenOf(parent int) (pids []int) {
	dir := fmt.Sprintf("/proc/%d/task/", parent)
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	listed := false
	for _, t := range tasks {
		b, err := os.ReadFile(dir + t.Name() + "/children")
		if err != nil {
			continue // this thread has ended, or the kernel does not have these lists
		}
		listed = true
		for field := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	if listed {
		return pids
	}
	for _, pid := range allProcesses() {
		if st, ok := readStat(pid); ok && st.parent == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}
