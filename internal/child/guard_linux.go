package child

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The times of a guard that hunts: all within the two seconds that Guard promises.
const (
	huntTerm  = time.Second // from the first SIGTERM to SIGKILL
	huntPause = 50 * time.Millisecond
	huntEmpty = 10
	huntMost  = time.Minute // then what is left cannot be killed
)

// guardAttr puts the guard into a session of its own, where the terminal's Ctrl-C and its end do not reach.
func guardAttr() (*syscall.SysProcAttr, error) { return &syscall.SysProcAttr{Setsid: true}, nil }

// runGuard is the guard's whole life.
func runGuard(cookie string) {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE, unix.SIGUSR1, unix.SIGUSR2)
	_ = os.WriteFile("/proc/self/comm", []byte(guardName), 0) // without /proc there is no guard either
	closeInherited()
	os.Stdout.Write([]byte{'\n'}) // ready
	os.Stdout.Close()
	if validCookie(cookie) && guarded(os.Stdin) {
		hunt(cookie, time.Now())
	}
}

// guarded reads the pipe to the other process and returns when that one has died.
func guarded(pipe *os.File) bool {
	b := make([]byte, 1)
	for {
		n, err := pipe.Read(b)
		switch {
		case n == 1 && b[0] == farewellByte:
			return false
		case err != nil:
			return true
		}
	}
}

// validCookie keeps a guard from hunting for something that anybody may have in his environment.
func validCookie(s string) bool { return len(s) >= 20 && !strings.ContainsAny(s, "=\x00.") }

// closeInherited closes what a careless parent of our parent left open. The runtime's own descriptors stay.
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

// hunt ends everything that carries the cookie or is in a cgroup named after it: SIGTERM on sight, SIGKILL
// after a second, until huntEmpty looks in a row find nobody. (One look can miss a process that forks into a
// lower number and exits, or one that is just becoming another program.)
func hunt(cookie string, began time.Time) {
	termed := make(map[int]bool)
	for empty := 0; empty < huntEmpty && time.Since(began) < huntMost; time.Sleep(huntPause) {
		empty++
		for _, c := range cgroupsOf(cookie) {
			if time.Since(began) >= huntTerm {
				c.kill()
			}
			c.remove() // works once it is empty
		}
		for _, pid := range belonging(cookie) {
			empty = 0
			p, ok := openPidfd(pid)
			switch {
			case !ok || !belongs(pid, cookie): // it may have become another's number in between
			case time.Since(began) >= huntTerm:
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

// Survivors lists the processes that Run started, or their descendants, that are alive and can be told by
// EXTMESH_COOKIE in their environment, or by their cgroup: nobody, when no Run is under way. Elsewhere than
// on Linux it returns nil.
func Survivors() []int { return belonging(cookie()) }

// belonging lists the living processes that carry a cookie or are in a cgroup named after it.
func belonging(cookie string) (pids []int) {
	for _, pid := range allProcesses() {
		if belongs(pid, cookie) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func belongs(pid int, cookie string) bool {
	st, ok := readStat(pid)
	return ok && !st.zombie() && (hasMark(pid, cookie+".") || inCgroupOf(pid, cookie))
}
