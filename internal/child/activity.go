package child

import "time"

// Activity is what a process and its descendants have done since they were started. Two readings show whether they work.
type Activity struct {
	CPU     time.Duration // processor time
	Written uint64        // bytes written to files, pipes and terminals
	Newest  int           // the start time of the youngest process, in the system's ticks

	Processes int   // that run
	Resident  int64 // bytes of memory; pages that several of them share count several times
	Known     bool  // it was read
}

// minCPU is the share of the time between two readings for which a working process used a processor, as a divisor. A
// program that only waits, with a few timers, uses less.
const minCPU = 100

// WorkedSince reports whether the processes have worked since an earlier reading, a time before this one. It returns false
// if the system does not provide the readings.
func (a Activity) WorkedSince(earlier Activity, before time.Duration) bool {
	if !a.Known || !earlier.Known {
		return false
	}
	return a.Written > earlier.Written || a.Newest > earlier.Newest || a.CPU-earlier.CPU > before/minCPU
}

// Activity reads what the process and its descendants have done so far. It reads a few files for each of them.
func (p *Process) Activity() Activity { return readActivity(p.PID) }
