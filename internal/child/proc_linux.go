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

// maxEnviron is how much of a process's environment is searched for a mark. Ours puts it first.
const maxEnviron = 1 << 20

// stat is what /proc/PID/stat says, as far as it matters here.
type stat struct {
	state                  byte
	parent, group, session int
	flags                  int
	threads                int
	started                int // in clock ticks since the system's start
	environ                int // where its environment ends: 0 for one that is becoming another program, or may not be looked at
}

// The kernel's PF_EXITING and PF_KTHREAD.
const (
	flagExiting = 0x4
	flagKernel  = 0x200000
)

// zombie reports whether the whole process is dead, and its children have gone to another parent: the main
// thread can be a zombie while others are still on their way out, and hold the children they started.
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

// parseStat reads "PID (comm) STATE PPID …" (proc_pid_stat(5)), where comm may hold anything, parentheses
// included.
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
	if len(fields) > 48 { // since Linux 3.5
		s.environ, _ = strconv.Atoi(fields[48]) // what is no number is an address not told
	}
	return s, true
}

// hasMark reports whether a process was started with cookieVar=mark in its environment; a mark that ends in
// a dot stands for all that begin with it.
func hasMark(pid int, mark string) bool {
	env, _ := readEnviron(pid)
	return environHasMark(env, mark)
}

// readEnviron reads a process's environment. It is empty, without an error, for a zombie, for one that is
// dying, and for one that is just about to become another program. (Of the first two newer kernels say that there is no
// such process.) Of one whose main thread has ended, and which lives on, another thread tells.
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

// bare reports whether a process has an environment, and nothing in it; before is what its stat said before that was
// found empty. While a process becomes another program its environment ends nowhere, and then somewhere else.
func bare(pid int, before stat) bool {
	after, ok := readStat(pid)
	return ok && after.environ != 0 && after.environ == before.environ
}

func environHasMark(env []byte, mark string) bool {
	want := []byte(cookieVar + "=" + mark)
	if !strings.HasSuffix(mark, ".") {
		want = append(want, 0)
	}
	for kv := range bytes.SplitAfterSeq(env, []byte{0}) {
		if bytes.HasPrefix(kv, want) {
			return true
		}
	}
	return false
}

// allProcesses lists every process there is, ourselves excepted.
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

// ownChildren lists our children, adopted ones included.
func ownChildren() (pids []int) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil
	}
	listed := false
	for _, t := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + t.Name() + "/children")
		if err != nil {
			continue // this thread has ended, or the kernel keeps no such list
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
	self := os.Getpid()
	for _, pid := range allProcesses() {
		if st, ok := readStat(pid); ok && st.parent == self {
			pids = append(pids, pid)
		}
	}
	return pids
}
