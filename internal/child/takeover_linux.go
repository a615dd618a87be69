package child

import (
	"fmt"
	"os"
	"time"
)

// processIs reports whether the process with this id and start time is still running.
func processIs(pid, started int) bool {
	st, ok := readStat(pid)
	return ok && !st.zombie() && st.started == started
}

// ownIdentity returns the text that TakeOver writes: the id and start time of this process, and its marker prefix.
func ownIdentity() string {
	st, ok := readStat(os.Getpid())
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d %d %s\n", os.Getpid(), st.started, markerPrefix())
}

// endBelonging ends the processes with a marker with this prefix, and returns how many were found first.
func endBelonging(prefix string) int {
	found := len(belonging(prefix))
	if found > 0 {
		endMarked(prefix, time.Now())
	}
	return found
}
