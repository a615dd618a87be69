package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestClosedOutput: extctl up runs on when nobody reads its output any more, as after "extctl up | head", and stops in order.
func TestClosedOutput(t *testing.T) {
	t.Parallel()
	dir, data := t.TempDir(), t.TempDir()
	slowExtension(t, dir, "one", 0)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program(t, "extctl"), "up", dir, "--listen", "0", "--data", data)
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the process
	defer func() { _ = cmd.Process.Kill() }()
	in := bufio.NewReader(r)
	for line := ""; !strings.Contains(line, "Ctrl-C stops everything"); {
		if line, err = in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	r.Close()
	url, err := exec.Command(program(t, "extctl"), "url", "--data", data).Output()
	if err != nil {
		t.Fatal(err)
	}
	extctlOK(t, strings.TrimSpace(string(url)), "restart", "one", "--wait") // these changes are printed
	if err := os.RemoveAll(filepath.Join(dir, "one")); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the extension is gone", func() bool {
		out, _, code := extctl(t, strings.TrimSpace(string(url)), "list", "--json")
		return code == 0 && !strings.Contains(out, `"one"`)
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}
