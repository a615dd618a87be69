package child

import (
	"fmt"
	"strings"
	"time"
)

// ExitError describes how a process ended. Every error that Run returns for a process that was started wraps one.
type ExitError struct {
	ExitCode   int           // the exit status; -1 if a signal ended it
	Signal     string        // the signal's name, "SIGKILL"; "": it exited
	Uptime     time.Duration // from its start to its end
	StderrTail string        // the end of its stderr, at most 4 KiB, redacted
	Stopped    bool          // Run ended it: use had returned, ctx had ended, or Terminate was called
	Cause      error         // the error of use, if it has another reason than the process's end
}

// Status is "exit status 3" or "signal SIGKILL".
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

// LastLine returns the last line of stderr that is not blank, at most 200 bytes.
func (e *ExitError) LastLine() string {
	s := strings.TrimSpace(e.StderrTail)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = strings.TrimSpace(s[i+1:])
	}
	return cut(s, 200)
}

// Unwrap returns Cause.
func (e *ExitError) Unwrap() error { return e.Cause }
