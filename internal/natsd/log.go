package natsd

import (
	"fmt"
	"log/slog"
	"strings"

	"golang.org/x/time/rate"
)

// serverLog is the server's logger: warnings and errors go to slog, notices (the banner, the listen addresses) to the
// debug level. A fatal error, after which the server stops itself, is also sent to fatal for start to return.
type serverLog struct {
	logger  *slog.Logger
	fatal   chan error
	refused rate.Sometimes // clients with wrong credentials, which may try again and again
}

func (l *serverLog) log(f func(*slog.Logger, string), format string, v []any) {
	if l.logger != nil {
		f(l.logger, fmt.Sprintf(format, v...))
	}
}

func (l *serverLog) Noticef(format string, v ...any) {
	l.log(func(s *slog.Logger, m string) { s.Debug("nats: " + m) }, format, v)
}

func (l *serverLog) Warnf(format string, v ...any) {
	l.log(func(s *slog.Logger, m string) { s.Warn("nats: " + m) }, format, v)
}

func (l *serverLog) Errorf(format string, v ...any) {
	if strings.Contains(fmt.Sprintf(format, v...), "authentication error") {
		l.refused.Do(func() { l.log(func(s *slog.Logger, m string) { s.Error("nats: " + m) }, format, v) })
		return
	}
	l.log(func(s *slog.Logger, m string) { s.Error("nats: " + m) }, format, v)
}

func (l *serverLog) Fatalf(format string, v ...any) {
	l.Errorf(format, v...)
	err := fmt.Errorf(format, v...)
	for _, arg := range v {
		if cause, ok := arg.(error); ok {
			err = cause // the server formats it with %q, which does not wrap it
		}
	}
	select {
	case l.fatal <- err:
	default:
	}
}

func (l *serverLog) Debugf(string, ...any) {}
func (l *serverLog) Tracef(string, ...any) {}
