package child

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// maxEnviron is how much of a process's environment is searched for a mark. Ours puts it first.
const maxEnviron = 1 << 20

// stat is what /proc/PID/stat says, as far as it matters here.
type stat struct {
	state                  byte
	parent, group, session int
}

func (s stat) zombie() bool { return s.state == 'Z' || s.state == 'X' || s.state == 'x' }

func readStat(pid int) (s stat, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, false
	}
	return parseStat(b)
}

// parseStat reads "PID (comm) S PPID PGRP SESSION …", where comm may hold anything, parentheses included.
func parseStat(b []byte) (s stat, ok bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return s, false
	}
	fields := strings.Fields(string(b[i+1:]))
	if len(fields) < 4 {
		return s, false
	}
	s.state = fields[0][0]
	for n, to := range []*int{&s.parent, &s.group, &s.session} {
		v, err := strconv.Atoi(fields[n+1])
		if err != nil {
			return s, false
		}
		*to = v
	}
	return s, true
}

// hasMark reports whether a process was started with cookieVar=mark in its environment; a mark that ends in
// a dot stands for all that begin with it. A zombie has no environment.
func hasMark(pid int, mark string) bool {
	f, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	defer f.Close()
	env, err := io.ReadAll(io.LimitReader(f, maxEnviron))
	return err == nil && environHasMark(env, mark)
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
