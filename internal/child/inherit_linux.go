package child

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// keepDescriptors makes all descriptors of this process except 0 to 2 close-on-exec. Go opens its own descriptors like
// that; this is for descriptors that were inherited from a parent that left them open.
func keepDescriptors() {
	if unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) == nil { // Linux 5.11
		return
	}
	fds, _ := os.ReadDir("/proc/self/fd") // without it, nothing can be done
	for _, e := range fds {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}
