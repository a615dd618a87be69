// Package rawio reads and writes pipes and sockets without notifying Go's scheduler.
//
// An ordinary system call notifies the scheduler before and after, because it might block. If it takes more than 20
// microseconds, the scheduler hands its processor to another thread, which must be woken and usually finds nothing to
// run, and the calling thread must find a new processor afterwards. Handing bytes to a process on the same machine
// takes about that long, or longer if the receiver runs immediately. So each read and write of a call would cost one
// or two thread switches, more than the call itself (docs/decisions/0011-raw-io.md).
//
// The descriptors must be non-blocking, as those from os.Pipe and net.Dial are: a blocking one would hold a processor,
// and with it the garbage collector. Go's poller does the waiting, so that Close and deadlines work as usual.
//
// On systems other than Linux, and under the race detector, which must see the ordering between two sides, File makes
// ordinary system calls.
package rawio
