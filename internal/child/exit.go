package child

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// ExitError describes how a process ended. Every error that Run returns for a process that was started wraps one.
type ExitError struct {
	ExitCode   int           // the exit status; -1 if a signal ended it
	Signal     string        // the signal's name, "SIGKILL"; "": it exited
	Uptime     time.Duration // from its start to its end
	CPU        time.Duration // processor time of it and of the children that it has waited for
	StderrTail string        // the end of its stderr, at most 4 KiB, redacted
	Reason     string        // the line of its output that most likely is the reason; "" if Run or a signal ended it, unless SetError has set it
	Stream     string        // of Reason: "stderr" or "stdout", also for a log message
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

// Error is one line: the cause if there is one, the status, the uptime, and the reason.
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
	if e.Reason != "" {
		fmt.Fprintf(&b, ", %s: %s", e.Stream, e.Reason)
	}
	return b.String()
}

// ended reports whether the process ended because somebody sent it a signal that ends processes.
func (e *ExitError) ended() bool {
	return e.Stopped || slices.Contains([]string{"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"}, e.Signal)
}

// setReason sets Reason from lines of stderr and stdout: the first that contains an error, else the last that may be a
// reason.
func (e *ExitError) setReason(stderr, stdout []string) {
	if e.ended() {
		return
	}
	line, isError := reasonIn(stderr)
	e.Reason, e.Stream = line, "stderr"
	if other, otherIsError := reasonIn(stdout); otherIsError && !isError || line == "" {
		e.Reason, e.Stream = other, "stdout"
	}
	if e.Reason == "" {
		e.Stream = ""
	}
}

// SetError sets Reason from an error in StderrTail, if there is one: also of a process that was stopped, if that was because it did
// not work from the beginning.
func (e *ExitError) SetError() {
	if line, isError := reasonIn(strings.Split(e.StderrTail, "\n")); isError {
		e.Reason, e.Stream = line, "stderr"
	}
}

// Unwrap returns Cause.
func (e *ExitError) Unwrap() error { return e.Cause }
