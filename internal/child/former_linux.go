package child

import (
	"fmt"
	"os"
	"time"
)

// processIs reports whether the process that had this id when it was noted is still there.
func processIs(pid, started int) bool {
	st, ok := readStat(pid)
	return ok && !st.zombie() && st.started == started
}

// ownIdentity is what TakeOver writes: this process, and the cookie of what it starts.
func ownIdentity() string {
	st, ok := readStat(os.Getpid())
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d %d %s\n", os.Getpid(), st.started, cookie())
}

// endBelonging ends the processes that carry a cookie, and returns how many there were at first.
func endBelonging(cookie string) int {
	found := len(belonging(cookie))
	if found > 0 {
		hunt(cookie, time.Now())
	}
	return found
}
