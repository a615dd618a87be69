package daemon

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"
)

// LogFlags configure logging.
type LogFlags struct {
	Level  string
	Format string
}

// AddFlags defines the flags on fs.
func (f *LogFlags) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&f.Level, "log-level", "info", "`LEVEL` of the log: debug, info, warn or error")
	fs.StringVar(&f.Format, "log-format", "auto", "`FORMAT` of the log: text, json, or auto (text on a terminal)")
}

// New returns a logger that writes to w.
func (f LogFlags) New(w io.Writer) (*slog.Logger, error) {
	var o slog.HandlerOptions
	level := new(slog.LevelVar)
	o.Level = level
	if f.Level != "" {
		if err := level.UnmarshalText([]byte(f.Level)); err != nil {
			return nil, UsageError{Err: fmt.Errorf("--log-level %q: want debug, info, warn or error", f.Level)}
		}
	}
	switch {
	case f.Format == "text", (f.Format == "auto" || f.Format == "") && IsTerminal(w):
		return slog.New(slog.NewTextHandler(w, &o)), nil
	case f.Format == "json", f.Format == "auto", f.Format == "":
		return slog.New(slog.NewJSONHandler(w, &o)), nil
	}
	return nil, UsageError{Err: fmt.Errorf("--log-format %q: want text, json or auto", f.Format)}
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
