package child

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// maxTree limits how many processes readActivity reads.
const maxTree = 1000

// clockTick is the unit of processor times in /proc/PID/stat. Linux shows 100 ticks a second to programs on all systems.
const clockTick = time.Second / 100

// readActivity adds up what the processes below pid, and pid itself, have done. The kernel adds the counts of a process
// that has exited to those of its parent, so the sums do not decrease.
func readActivity(pid int) (a Activity) {
	tree := []int{pid}
	for i := 0; i < len(tree) && i < maxTree; i++ {
		st, ok := readStat(tree[i])
		if !ok {
			continue
		}
		a.Known = true
		if !st.zombie() {
			a.Processes++
			a.Resident += int64(st.resident) * int64(os.Getpagesize())
		}
		a.CPU += time.Duration(st.ticks) * clockTick
		a.Newest = max(a.Newest, st.started)
		a.Written += writtenBy(tree[i])
		tree = append(tree, childrenOf(tree[i])...)
	}
	return a
}

// writtenBy returns how many bytes a process has written, 0 if that cannot be read.
func writtenBy(pid int) uint64 {
	b, _ := readLimited(fmt.Sprintf("/proc/%d/io", pid))
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte("wchar: ")); ok {
			n, _ := strconv.ParseUint(string(bytes.TrimSpace(v)), 10, 64)
			return n
		}
	}
	return 0
}
