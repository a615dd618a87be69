package main

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/extmesh/extmesh/internal/doctor"
	"github.com/extmesh/extmesh/internal/load"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// openTerminal returns both ends of a new terminal: what is written to tty can be read from master.
func openTerminal(t *testing.T) (master, tty *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if tty, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return master, tty
}

// TestTerminal: what an extension returns cannot control the terminal that it is printed on.
func TestTerminal(t *testing.T) {
	const hostile = "\u009b2J\u202egpj.exe\x7f"
	master, tty := openTerminal(t)
	a := &app{stdout: tty, stderr: tty, getenv: func(string) string { return "" }}
	for name, print := range map[string]func(*session) error{
		"call":        func(s *session) error { return s.printResult(json.RawMessage(`{"x":"`+hostile+`"}`), false) },
		"call --json": func(s *session) error { s.json = true; return s.printResult(json.RawMessage(`"`+hostile+`"`), false) },
		"hook fire":   func(s *session) error { return printFired(s, mesh.Fired{Event: json.RawMessage(`"` + hostile + `"`)}) },
		"--json":      func(s *session) error { return s.printJSON(map[string]string{"x": hostile}) },
		"error": func(s *session) error {
			s.printError(exitOther, &failure{code: exitOther, err: fail(1, "x %s", hostile), hint: "did you mean " + hostile + "?"})
			return nil
		},
		"table": func(s *session) error {
			table := s.newTable("X")
			table.Add(hostile)
			return table.Print(s.stdout)
		},
	} {
		one := *a
		if err := print(&session{app: &one}); err != nil {
			t.Fatal(err)
		}
		if have := printed(t, master, tty); strings.ContainsAny(have, "\u009b\u202e\x7f") || !strings.Contains(have, "gpj.exe") {
			t.Errorf("%s prints %q", name, have)
		}
	}
}

// TestDumbTerminal: progress, and the tables of top, contain no escape sequences if the terminal does not interpret them.
func TestDumbTerminal(t *testing.T) {
	master, tty := openTerminal(t)
	term := ""
	a := &app{stdout: tty, stderr: tty, getenv: func(name string) string { return map[string]string{"TERM": term}[name] }}
	a.nats.Prefix = wire.DefaultPrefix
	for name, print := range map[string]func(){
		"bench": func() { benchProgress(t.Context(), &session{app: a}, load.Options{})() },
		"call": func() {
			synctest.Test(t, func(t *testing.T) {
				stop := (&callProgress{}).show(t.Context(), a)
				time.Sleep(2 * progressAfter) // fake time
				stop()
			})
		},
		"doctor": func() {
			if err := tryHost(t.Context(), a, &doctor.Doctor{}); err != nil {
				t.Error(err)
			}
		},
		"top": func() {
			if err := (statsCommand{&session{app: a}, &statsFlags{}, ""}).print(sample{}, &sample{}, nil); err != nil {
				t.Error(err)
			}
		},
	} {
		for _, term = range []string{"xterm", "dumb"} {
			print()
			if text := printed(t, master, tty); strings.Contains(text, "\x1b") != (term == "xterm") {
				t.Errorf("with TERM=%s, %s prints %q", term, name, text)
			}
		}
	}
}

// printed returns what has been written to a terminal since the last call.
func printed(t *testing.T, master, tty *os.File) string {
	t.Helper()
	if _, err := tty.WriteString("the end\n"); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for buf := make([]byte, 4096); !strings.HasSuffix(text.String(), "the end\r\n"); {
		n, err := master.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(buf[:n])
	}
	return text.String()
}
