// Package rawio reads and writes descriptors that do not block, without telling Go's scheduler.
//
// An ordinary system call tells it twice, before and after, for it might take long. One that takes more than twenty
// microseconds loses its processor to another thread, which has to be woken for that and looks about in vain, and has to
// find a new one when it is done. To hand bytes to a process on the same machine takes about as long, or longer
// when that process runs at once in the place of the one that writes. So on the way of a call every read and write
// costs a change of threads or two, and they are more than the call itself (docs/decisions/0011-raw-io.md).
//
// It is for descriptors that do not block, and for those only: one that waits holds up a processor, and with it the
// collector. Waiting is the poller's: call it in syscall.RawConn's Read, Write or Control.
//
//	raw.Read(func(fd uintptr) bool {
//		n, err = rawio.Read(fd, p)
//		return err != syscall.EAGAIN
//	})
//
// On other systems than Linux, and under the race detector, which has to see what orders two sides, it makes ordinary
// system calls.
package rawio
