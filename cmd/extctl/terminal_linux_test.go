package main

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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
		if _, err := tty.WriteString("the end\n"); err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for buf := make([]byte, 4096); !strings.Contains(text.String(), "the end"); {
			n, err := master.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			text.Write(buf[:n])
		}
		if have := text.String(); strings.ContainsAny(have, "\u009b\u202e\x7f") || !strings.Contains(have, "gpj.exe") {
			t.Errorf("%s prints %q", name, have)
		}
	}
}
