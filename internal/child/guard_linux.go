package child

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The timing of endMarked: within the two seconds that Guard documents.
const (
	markedTerm  = time.Second // from the first SIGTERM to SIGKILL
	markedPause = 50 * time.Millisecond
	markedEmpty = 10          // scans in a row without a result
	markedLimit = time.Minute // then the remaining processes cannot be killed
)

// guardAttr puts the guard into a session of its own, so that the terminal's Ctrl-C and its end do not reach it.
func guardAttr() (*syscall.SysProcAttr, error) { return &syscall.SysProcAttr{Setsid: true}, nil }

// runGuard is the guard's main function.
func runGuard(prefix string) {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE, unix.SIGUSR1, unix.SIGUSR2)
	// A guard does not work without /proc anyway. Its own /proc/self/comm belongs to root, since the guard is not dumpable.
	_ = os.WriteFile(fmt.Sprintf("/proc/self/task/%d/comm", os.Getpid()), []byte(guardName), 0)
	closeInherited()
	os.Stdout.Write([]byte{'\n'}) // ready
	os.Stdout.Close()
	if validPrefix(prefix) && parentKilled(os.Stdin) {
		endMarked(prefix, time.Now())
	}
}

// parentKilled reads the pipe from the parent. It returns true at EOF, and false after exitByte.
func parentKilled(pipe *os.File) bool {
	b := make([]byte, 1)
	for {
		n, err := pipe.Read(b)
		switch {
		case n == 1 && b[0] == exitByte:
			return false
		case err != nil:
			return true
		}
	}
}

// validPrefix rejects a marker prefix that other processes could have in their environment by chance.
func validPrefix(s string) bool { return len(s) >= 20 && !strings.ContainsAny(s, "=\x00.") }

// closeInherited closes descriptors that were inherited unintentionally. The Go runtime's own descriptors stay open.
func closeInherited() {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		to, linkErr := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && linkErr == nil && fd > 2 && !strings.HasPrefix(to, "anon_inode:") {
			unix.Close(fd)
		}
	}
}

// endMarked ends all processes that have a marker with this prefix in their environment, or are in a cgroup named after
// it: SIGTERM when found, SIGKILL after a second, until markedEmpty scans in a row find none. (One scan can miss a process
// that forks a child with a lower id and exits, or one that is in an exec.)
func endMarked(prefix string, began time.Time) {
	termed := make(map[int]bool)
	for empty := 0; empty < markedEmpty && time.Since(began) < markedLimit; time.Sleep(markedPause) {
		empty++
		for _, c := range cgroupsOf(prefix) {
			if time.Since(began) >= markedTerm {
				c.kill()
			}
			c.remove() // succeeds if it is empty
		}
		for _, pid := range belonging(prefix) {
			empty = 0
			p, ok := openPidfd(pid)
			switch {
			case !ok || !belongs(pid, prefix): // the id may have been used again for another process
			case time.Since(began) >= markedTerm:
				p.signal(unix.SIGKILL)
			case !termed[pid]:
				termed[pid] = true
				p.signal(unix.SIGTERM)
				p.signal(unix.SIGCONT)
			}
			p.close()
		}
	}
}

// Survivors returns the running processes that Run started, and their descendants, as far as they can be recognised by
// EXTMESH_COOKIE in their environment or by their cgroup. It returns none if no Run is in progress. On systems other than
// Linux it returns nil.
func Survivors() []int { return belonging(markerPrefix()) }

// belonging returns the running processes that have a marker with this prefix in their environment, or are in a cgroup
// named after it.
func belonging(prefix string) (pids []int) {
	for _, pid := range allProcesses() {
		if belongs(pid, prefix) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func belongs(pid int, prefix string) bool {
	st, ok := readStat(pid)
	return ok && !st.zombie() && (hasMarker(pid, prefix+".") || inCgroupOf(pid, prefix))
}
