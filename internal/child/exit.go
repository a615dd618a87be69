package child

import (
	"fmt"
	"strings"
	"time"
)

// ExitError says how a process ended. It stands behind every error that Run returns for a process that had
// been started.
type ExitError struct {
	ExitCode   int           // the exit status; -1 if a signal ended it
	Signal     string        // the signal's name, "SIGKILL"; "": it exited
	Uptime     time.Duration // from its start to its end
	StderrTail string        // the last of what it wrote to stderr, at most 4 KiB, redacted
	Stopped    bool          // Run ended it: use had returned, ctx had ended, or Terminate was called
	Cause      error         // why use returned, if that says more than that the process ended
}

// Status is the end in two words, "exit status 3" or "signal SIGKILL".
func (e *ExitError) Status() string {
	if e.Signal != "" {
		return "signal " + e.Signal
	}
	return fmt.Sprintf("exit status %d", e.ExitCode)
}

// Error is one line: the cause if there is one, the status, the uptime, and the last line of stderr.
func (e *ExitError) Error() string {
	var b strings.Builder
	if e.Cause != nil {
		b.WriteString(e.Cause.Error())
		b.WriteString("; ")
	}
	if e.Stopped {
		b.WriteString("stopped: ")
	}
	fmt.Fprintf(&b, "%s after %s", e.Status(), e.Uptime.Round(time.Millisecond))
	if last := e.LastLine(); last != "" {
		fmt.Fprintf(&b, ", stderr: %s", last)
	}
	return b.String()
}

// LastLine is the last line of stderr that is not blank, at most 200 bytes of it.
func (e *ExitError) LastLine() string {
	s := strings.TrimSpace(e.StderrTail)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = strings.TrimSpace(s[i+1:])
	}
	return cut(s, 200)
}

// Unwrap returns Cause.
func (e *ExitError) Unwrap() error { return e.Cause }
