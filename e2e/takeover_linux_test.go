package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// procFile reads a file of /proc. It returns "" if the process does not exist.
func procFile(pid int, name string) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	return string(text)
}

// childrenOf lists the processes that have this parent.
func childrenOf(pid int) (pids []int) {
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		p, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		stat := procFile(p, "stat")
		if i := strings.LastIndexByte(stat, ')'); i >= 0 {
			if f := strings.Fields(stat[i+1:]); len(f) > 1 && f[1] == strconv.Itoa(pid) {
				pids = append(pids, p)
			}
		}
	}
	return pids
}

// TestTakeOver kills a bridge and its guard. The next bridge with the same name must end their processes. The guard's name
// must not contain the bridge's, so that killall with the bridge's name does not kill the guard.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	url, _ := startNATS(t)
	dir, state := filepath.Join(t.TempDir(), "extensions"), t.TempDir()
	writeShell(t, dir, "stays", "exec sleep 600")
	run := func() *process {
		return start(t, []string{"NATS_URL=" + url}, program(t, "stdio-bridge"), "--name", "one", "--search-path", dir, "--state-dir", state)
	}
	bridge := run()
	nc := connect(t, url)
	readyToAct(t, nc, "stays")
	pid := bridge.cmd.Process.Pid
	guard, child := 0, 0
	eventually(t, time.Minute, "the guard and the child run", func() bool {
		for _, p := range childrenOf(pid) {
			switch args := procFile(p, "cmdline"); {
			case strings.Contains(args, "(guard)") && procFile(p, "comm") != "exe\n":
				guard = p
			case strings.HasPrefix(args, "sleep\x00"):
				child = p
			}
		}
		return guard != 0 && child != 0
	})
	for _, name := range []string{"comm", "cmdline"} {
		if text := procFile(guard, name); strings.Contains(text, "bridge") || !strings.HasPrefix(text, "extmesh-guard") {
			t.Errorf("%s of the guard is %q", name, text)
		}
	}

	// The bridge is stopped first; otherwise it would start another guard.
	for _, kill := range []struct {
		pid int
		sig syscall.Signal
	}{{pid, syscall.SIGSTOP}, {guard, syscall.SIGKILL}, {pid, syscall.SIGKILL}} {
		if err := syscall.Kill(kill.pid, kill.sig); err != nil {
			t.Fatal(err)
		}
	}
	<-bridge.done
	mark := procFile(child, "environ")
	if !strings.Contains(mark, "EXTMESH_COOKIE=") {
		t.Fatalf("the child did not outlive its bridge: its environment is %q", mark)
	}
	second := run()
	eventually(t, time.Minute, "what the first bridge left behind has ended", func() bool { return procFile(child, "environ") != mark })
	eventually(t, time.Minute, "the log has the message", func() bool {
		return strings.Contains(second.output(), "stopped processes left over from an earlier run of this bridge")
	})
	readyToAct(t, nc, "stays")
	second.stop(t, 10*time.Second)
	if left, err := os.ReadDir(state); err != nil || strings.Contains(fmt.Sprint(left), ".bridge-") {
		t.Errorf("the state directory holds %v, %v", left, err)
	}
}
