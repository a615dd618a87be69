package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// slowExtension writes an extension that needs some seconds to start. Its tool pid returns its process id. The tool is
// read-only: a call that arrives before the bridge has noticed the end of the process may be made again.
func slowExtension(t *testing.T, dir, id string, seconds float64) {
	t.Helper()
	write(t, filepath.Join(dir, id, "plugin.toml"), fmt.Sprintf(`
[plugin]
id = %q
version = "1.0.0"
[capabilities]
tools = ["pid"]
[transport]
type = "stdio"
command = "sh"
args = ["server.sh"]
`, id))
	write(t, filepath.Join(dir, id, "server.sh"), fmt.Sprintf(`
sleep %g
while IFS= read -r line; do
	case $line in *'"id":'*) id=${line#*'"id":'} id=${id%%%%[,\}]*} ;; *) id= ;; esac
	case $line in
	*'"initialize"'*) r='{"server_version":"1","tools":[{"name":"pid","input_schema":{"type":"object"},"annotations":{"readOnlyHint":true}}],"hooks":[]}' ;;
	*) r="{\"pid\":$$}" ;;
	esac
	[ -n "$id" ] && printf '{"jsonrpc":"2.0","id":%%s,"result":%%s}\n' "$id" "$r"
done
`, seconds))
}

// slowMesh runs extensions that need different times to start.
func slowMesh(t *testing.T) (url string, ids []string) {
	t.Helper()
	url, _ = startNATS(t)
	dir := t.TempDir()
	delays := []float64{0.5, 1.5}
	if slowTests() {
		delays = []float64{1, 2.5, 6}
	}
	for i, seconds := range delays {
		id := fmt.Sprintf("slow%d", i)
		slowExtension(t, dir, id, seconds)
		ids = append(ids, id)
	}
	env := []string{"NATS_URL=" + url}
	start(t, env, program(t, "registry"))
	start(t, env, program(t, "stdio-bridge"), "--name", "slow", "--search-path", dir)
	for _, id := range ids {
		extctlOK(t, url, "wait", id)
	}
	return url, ids
}

func extctlOK(t *testing.T, url string, args ...string) (stdout string) {
	t.Helper()
	stdout, stderr, code := extctl(t, url, args...)
	if code != 0 {
		t.Errorf("extctl %s: exit %d, %s%s", strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}

func pidOf(t *testing.T, url, id string) int {
	t.Helper()
	var r struct{ PID int }
	if err := json.Unmarshal([]byte(extctlOK(t, url, "call", id+"/pid")), &r); err != nil {
		t.Error(err)
	}
	return r.PID
}

// TestRestartWaitCall restarts extensions, waits for them and calls them: the wait does not end with the state from before
// the restart, and the call reaches the new process.
func TestRestartWaitCall(t *testing.T) {
	t.Parallel()
	url, ids := slowMesh(t)
	times := 2
	if slowTests() {
		times = 20
	}
	t.Run("all", func(t *testing.T) {
		for _, id := range ids {
			t.Run(id, func(t *testing.T) {
				t.Parallel()
				for n := range times {
					before := pidOf(t, url, id)
					extctlOK(t, url, "restart", id)
					if n%2 == 0 { // a call waits by itself, too
						extctlOK(t, url, "wait", id)
					}
					if after := pidOf(t, url, id); after == before {
						t.Errorf("%d: the call after the restart reached the old process %d", n, after)
					}
				}
			})
		}
	})
}

// TestCallTimeoutHint: a call that ends before the extension has started names the flag that gives it longer.
func TestCallTimeoutHint(t *testing.T) {
	t.Parallel()
	url, _ := startNATS(t)
	dir := t.TempDir()
	slowExtension(t, dir, "slow", 0)
	env := []string{"NATS_URL=" + url}
	start(t, env, program(t, "registry"))
	start(t, env, program(t, "stdio-bridge"), "--name", "slow", "--search-path", dir)
	extctlOK(t, url, "wait", "slow")
	slowExtension(t, dir, "slow", 1000) // from the restart on
	extctlOK(t, url, "restart", "slow")
	var stderr string
	var code int
	for _, limit := range []struct{ had, longer string }{{"1s", "4s"}, {"5s", "20s"}, {"20s", "1m20s"}} { // which must suffice for one refusal
		_, stderr, code = extctl(t, url, "call", "slow/pid", "--timeout", limit.had)
		hint := "the call had " + limit.had + "; --timeout " + limit.longer + " gives it longer"
		if code != 0 && strings.Contains(stderr, hint) && strings.Contains(stderr, "slow takes no calls (restarting") {
			return
		}
	}
	t.Errorf("exit %d, %s", code, stderr)
}

// TestCallAcrossExit calls a tool that only reads, and whose process ends during the first call: extctl waits until the
// extension is back and makes the call again.
func TestCallAcrossExit(t *testing.T) {
	t.Parallel()
	url, _ := startNATS(t)
	dir := t.TempDir()
	slowExtension(t, dir, "once", 0)
	write(t, filepath.Join(dir, "once", "server.sh"), `
id() { i=${line#*'"id":'}; printf %s "${i%%[,\}]*}"; }
[ -e called ] && sleep 1.5
while IFS= read -r line; do
	case $line in
	*'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"pid","annotations":{"readOnlyHint":true}}]}}\n' "$(id)" ;;
	*'pid"'*) [ -e called ] || { touch called; kill -9 $$; }; printf '{"jsonrpc":"2.0","id":%s,"result":{"pid":1}}\n' "$(id)" ;;
	*'"id":'*) printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$(id)" ;;
	esac
done
`)
	env := []string{"NATS_URL=" + url}
	start(t, env, program(t, "registry"))
	start(t, env, program(t, "stdio-bridge"), "--name", "once", "--search-path", dir)
	extctlOK(t, url, "wait", "once")
	if pid := pidOf(t, url, "once"); pid != 1 {
		t.Errorf("the call returned %d, want 1", pid)
	}
}

// TestCallAfterKill kills extensions that need up to six seconds to start, and calls them at once: for the first time,
// when they are restarted without a delay, and again. Every call succeeds within its time.
func TestCallAfterKill(t *testing.T) {
	t.Parallel()
	url, ids := slowMesh(t)
	t.Run("all", func(t *testing.T) {
		for _, id := range ids {
			t.Run(id, func(t *testing.T) {
				t.Parallel()
				pid := pidOf(t, url, id)
				for n := range 2 {
					if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
					after := pidOf(t, url, id)
					if after == pid || after == 0 {
						t.Fatalf("%d: process %d answered, process %d was killed", n, after, pid)
					}
					pid = after
				}
			})
		}
	})
}
