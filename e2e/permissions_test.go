package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/rpc"
)

// permissionRow is one row of the permission table in docs/operations.md: an operation, and the roles that may do it.
type permissionRow struct {
	verb, subject, queue string
	may                  map[string]bool // by role
}

// permissionTable reads the table from the page, so that the page and the test cannot differ.
func permissionTable(t *testing.T) (rows []permissionRow) {
	t.Helper()
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "| | registry | bridge | extension | agent | operator |\n")
	if !ok {
		t.Fatal("docs/operations.md has no permission table")
	}
	row := regexp.MustCompile("^\\| (publish|subscribe) `([^`]+)`(?: in `([^`]+)`)?[^|]*\\|(.*)\\|$")
	columns := []string{"registry", "bridge", "extension", "agent", "operator"}
	for line := range strings.Lines(table) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			break
		}
		if strings.HasPrefix(line, "|---") {
			continue
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("cannot parse this row: %s", line)
		}
		cells := strings.Split(m[4], "|")
		r := permissionRow{verb: m[1], subject: m[2], queue: m[3], may: map[string]bool{}}
		for i, role := range columns {
			switch cell := strings.TrimSpace(cells[i]); cell {
			case "yes":
				r.may[role] = true
			case "":
			default:
				t.Fatalf("a cell is yes or empty, not %q: %s", cell, line)
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// try performs the operation of a row and returns whether the server allowed it.
func (r permissionRow) try(t *testing.T, url, user string) bool {
	t.Helper()
	nc, err := nats.Connect(url, nats.Timeout(time.Minute), nats.CustomInboxPrefix("_INBOX."+user), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatalf("as %s: %v", user, err)
	}
	defer nc.Close()
	switch {
	case r.verb == "publish":
		err = nc.Publish(r.subject, nil)
	case r.queue != "":
		_, err = nc.QueueSubscribeSync(r.subject, r.queue)
	default:
		_, err = nc.SubscribeSync(r.subject)
	}
	if err == nil {
		err = nc.Flush() // the server's refusal comes before its answer to this
	}
	if err != nil {
		t.Fatalf("as %s: %v", user, err)
	}
	if err := nc.LastError(); err != nil && !errors.Is(err, nats.ErrPermissionViolation) {
		t.Fatalf("as %s: %v", user, err)
	}
	return nc.LastError() == nil
}

// TestPermissionsOnOneServer and TestPermissionsOnThreeServers try every operation in the table of docs/operations.md, as
// each role, on the shipped configuration. On three servers, the roles connect to different servers.
func TestPermissionsOnOneServer(t *testing.T) {
	t.Parallel()
	url, _ := startShipped(t, "one.conf", nil)
	testPermissions(t, func(user string) string { return as(url, user) })
}

func TestPermissionsOnThreeServers(t *testing.T) {
	slowOnly(t, "three servers")
	t.Parallel()
	c := startCluster(t)
	place := map[string]int{"registry": 0, "bridge-0": 1, "primes": 2, "agent": 1, "operator": 2}
	testPermissions(t, func(user string) string { return c.at(place[user], user) })
}

func testPermissions(t *testing.T, at func(user string) string) {
	rows := permissionTable(t)
	pairs := map[string]int{}
	allowed, refused := 0, 0
	for _, r := range rows {
		for role, user := range roles {
			may := r.try(t, at(user), user)
			switch {
			case may && !r.may[role]:
				t.Errorf("%s may %s %s %s, and must not", role, r.verb, r.subject, r.queue)
			case !may && r.may[role]:
				t.Errorf("%s may not %s %s %s, and must", role, r.verb, r.subject, r.queue)
			case may:
				allowed++
			default:
				refused++
				for other := range r.may {
					pairs[role+" as "+other]++
				}
			}
		}
	}
	for a := range roles {
		for b := range roles {
			if a != b && pairs[a+" as "+b] == 0 {
				t.Errorf("nothing in the table is allowed to the role %s and refused to %s", b, a)
			}
		}
	}
	t.Logf("%d rows: %d operations allowed, %d refused; every pair of roles was distinguished at least %d times",
		len(rows), allowed, refused, slices.Min(slices.Collect(maps.Values(pairs))))

	agent, err := url.Parse(at("agent"))
	if err != nil {
		t.Fatal(err)
	}
	for what, user := range map[string]*url.Userinfo{
		"no user": nil, "an unknown user": url.UserPassword("unknown", "x"), "a wrong password": url.UserPassword("agent", "guess"),
	} {
		agent.User = user
		if nc, err := nats.Connect(agent.String(), nats.Timeout(time.Minute)); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: connected, or failed with another error: %v", what, err)
			nc.Close()
		}
	}
}

// TestRoles runs a complete mesh with the shipped configuration, every role with its own user. The server must not refuse
// anything that the programs normally do.
func TestRoles(t *testing.T) {
	t.Parallel()
	url, server := startShipped(t, "one.conf", nil)
	env := func(user string) []string { return []string{"NATS_URL=" + as(url, user)} }
	inbox := func(user string) string { return "--inbox-prefix=_INBOX." + user }
	logs := []*process{
		start(t, env("registry"), program(t, "registry"), "--name", "a", inbox("registry")),
		start(t, env("registry"), program(t, "registry"), "--name", "b", inbox("registry")),
	}
	binary := program(t, "primes")
	dir := writeWho(t, "zero")
	write(t, filepath.Join(dir, "..", "skills", "greeting", "SKILL.md"), "---\nname: Greeting\ndescription: How to greet.\n---\nSay hello.\n")
	write(t, filepath.Join(dir, "bundle", "mcp.sh"), bundled)
	write(t, filepath.Join(dir, "bundle", "plugin.toml"), `
[plugin]
id = "bundle"
version = "1.0.0"
[mcp_servers.inner]
type = "stdio"
command = "sh"
args = ["mcp.sh"]
`)
	config := filepath.Join(t.TempDir(), "extensions.yaml")
	write(t, config, fmt.Sprintf("extensions:\n  search_paths: [%q]\n  skills_dir: %q\n", dir, filepath.Join(dir, "..", "skills")))
	for _, name := range []string{"bridge-0", "bridge-1"} {
		logs = append(logs, start(t, env(name), program(t, "stdio-bridge"), "--name", name, "--config", config, "--state-dir", t.TempDir(), inbox(name)))
	}
	service := start(t, env("primes"), binary, inbox("primes"))
	logs = append(logs, service)

	ext := func(user string, code int, args ...string) string {
		t.Helper()
		out, stderr, got := extctl(t, as(url, user), append(args, inbox(user))...)
		if got != code {
			t.Errorf("extctl %v as %s: exit %d, want %d: %s%s", args, user, got, code, out, stderr)
		}
		return out
	}
	client, catalog := caller(t, as(url, "agent"), nats.CustomInboxPrefix("_INBOX.agent"))
	eventually(t, time.Minute, "everything is ready", func() bool {
		return instances(catalog, "who", "") == 2 && instances(catalog, "primes", "") == 1 && instances(catalog, "bundle.inner", "") == 2
	})

	// Operations of an agent.
	for tool, args := range map[string]string{
		"ext_who_who": `{}`, "ext_primes_factor": `{"n":91}`, "ext_bundle_inner_echo": `{}`,
	} {
		if _, err := client.Call(t.Context(), tool, json.RawMessage(args)); err != nil {
			t.Errorf("%s: %v", tool, err)
		}
	}
	progress := 0
	if _, err := client.CallStream(t.Context(), "ext_primes_count", json.RawMessage(`{"below":2000000}`), func(json.RawMessage) { progress++ }); err != nil || progress == 0 {
		t.Errorf("a call with progress: %v, %d messages", err, progress)
	}
	if r, err := client.Call(t.Context(), "ext_bundle_inner_large", nil); err != nil || len(r) < 10<<20 {
		t.Errorf("a large answer: %d bytes, %v", len(r), err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	_, err := client.Call(short, "ext_primes_count", json.RawMessage(`{"below":100000000}`))
	cancel()
	if !errors.Is(err, rpc.CodeTimeout) { // the client also publishes a suspect report and a cancel message
		t.Errorf("a call without enough time: %v", err)
	}
	ext("agent", 0, "status")
	ext("agent", 0, "list")
	ext("agent", 0, "call", "ext_who_who")
	ext("agent", 0, "tools")

	// Operations of an operator.
	for _, args := range [][]string{
		{"status"}, {"list"}, {"show", "who"}, {"show", "registry"}, {"hosts"}, {"tools"}, {"hooks"}, {"skills"},
		{"wait", "who", "--for", "ready"}, {"ping"}, {"ping", "primes"}, {"call", "ext_who_who"}, {"logs", "who"},
		{"hook", "fire", "before_message", "{}"}, {"reload", "bridge-0"}, {"reload"},
		{"drain", "--host", "bridge-0", "--yes"}, {"undrain", "--host", "bridge-0"}, {"drain", "who", "--yes"}, {"undrain", "who"}, {"restart", "who"},
	} {
		ext("operator", 0, args...)
	}
	eventually(t, time.Minute, "they are back", func() bool { return instances(catalog, "who", "") == 2 })

	// Events: the leading registry is killed, a service is stopped, a bridge is stopped.
	logs[0].cmd.Process.Kill()
	service.stop(t, 10*time.Second)
	eventually(t, time.Minute, "the catalog shows that the service was shut down", func() bool { return instances(catalog, "primes", "") == 0 })
	ext("operator", 0, "forget", "primes")
	logs[3].stop(t, 15*time.Second)
	eventually(t, time.Minute, "the catalog shows that the bridge's instance was shut down", func() bool { return instances(catalog, "who", "") == 1 })

	if log := server.output(); strings.Contains(log, "iolation") {
		t.Errorf("the server refused something:\n%s", log)
	}
	for _, p := range logs {
		if strings.Contains(p.output(), "denied") || strings.Contains(p.output(), "iolation") {
			t.Errorf("the log of %s has a refused operation", filepath.Base(p.cmd.Path))
		}
	}
}

// bundled is an MCP server in shell, with a fast tool and one with a large answer.
const bundled = `
while IFS= read -r line; do
	case $line in *'"id":'*) id=${line#*'"id":'} id=${id%%[,\}]*} ;; *) id= ;; esac
	case $line in
	*'"initialize"'*) r='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"b","version":"1"}}' ;;
	*'"tools/list"'*) r='{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"large","inputSchema":{"type":"object"}}]}' ;;
	*'"large"'*) r="{\"content\":[{\"type\":\"text\",\"text\":\"$(head -c 12000000 /dev/zero | tr '\0' x)\"}]}" ;;
	*) r='{"content":[]}' ;;
	esac
	[ -n "$id" ] && printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$r"
done
`

// TestDenied runs programs as users that lack the permission for a required subscription. They must not become ready.
func TestDenied(t *testing.T) {
	t.Parallel()
	url, _ := startShipped(t, "one.conf", nil)
	env := func(user string) []string { return []string{"NATS_URL=" + as(url, user)} }
	start(t, env("registry"), program(t, "registry"), "--inbox-prefix", "_INBOX.registry")
	// The user bridge-0 may announce any extension, but may receive control requests under its own name only.
	at := start(t, env("bridge-0"), program(t, "stdio-bridge"), "--name", "another", "--inbox-prefix", "_INBOX.bridge-0", "--http", "127.0.0.1:0",
		"--search-path", writeWho(t, "another"), "--state-dir", t.TempDir()).serves(t)
	eventually(t, time.Minute, "the bridge is not ready, with the reason", func() bool {
		return strings.Contains(get(t, "http://"+at+"/readyz"), "NATS denied the subscription to ext.control.another;")
	})
	// The user primes may announce its service, but may not subscribe under another subject prefix.
	start(t, env("primes"), program(t, "primes"), "--inbox-prefix", "_INBOX.primes", "--subject-prefix", "elsewhere")
	_, catalog := caller(t, as(url, "agent"), nats.CustomInboxPrefix("_INBOX.agent"))
	eventually(t, time.Minute, "the service is failed, with the reason", func() bool {
		e, _ := catalog.Get("primes")
		return e.State != nil && e.State.State == "failed" && !e.State.Available && strings.Contains(e.State.Reason, "elsewhere.primes.rpc")
	})
}
