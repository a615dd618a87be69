package docs_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// TestPermissionRows checks that the permission table in protocol.md and deploy/nats/roles.conf, which e2e tests, contain
// the same permissions.
func TestPermissionRows(t *testing.T) {
	for _, name := range []string{"REGISTRY", "BRIDGE_0", "BRIDGE_1", "PRIMES", "AGENT", "OPERATOR", "SYS", "MCP"} {
		t.Setenv(name+"_PASSWORD", "secret")
	}
	opts, err := server.ProcessConfigFile("../deploy/nats/roles.conf")
	if err != nil {
		t.Fatal(err)
	}
	users := map[string]*server.User{}
	for _, u := range opts.Users {
		users[u.Username] = u
	}
	user := map[string]string{"caller": "agent", "extension": "primes", "bridge": "bridge-0", "registry": "registry", "operator": "operator"}
	real := strings.NewReplacer("P.", "ext.", "KV_B", "KV_ext_catalog", "KV.B", "KV.ext_catalog", "<id>", "primes", "<bridge>", "bridge-0")
	inCode := regexp.MustCompile("`([^`]+)`")
	// The MCP server may do what a caller may.
	as := func(user string) string {
		p, err := json.Marshal(users[user].Permissions)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(p), "_INBOX."+user+".", "_INBOX.*.")
	}
	if as("mcp") != as("agent") {
		t.Errorf("the permissions differ: mcp has\n%s, agent\n%s", as("mcp"), as("agent"))
	}
	roles := rows(t, read(t, "protocol.md"), "| role | publish | but not | subscribe | but not |")
	for _, row := range roles {
		u := users[user[strings.Trim(row[0], "`")]]
		if u == nil || u.Permissions == nil {
			t.Fatalf("roles.conf has no user for the role %s", row[0])
		}
		p := u.Permissions
		for i, have := range [][]string{1: p.Publish.Allow, 2: p.Publish.Deny, 3: p.Subscribe.Allow, 4: p.Subscribe.Deny} {
			if i == 0 {
				continue
			}
			var want []string
			cell := row[i]
			if strings.HasPrefix(cell, "P.") || strings.HasPrefix(cell, "$") { // rows takes the outermost ` away
				cell = "`" + cell
			}
			if strings.Count(cell, "`")%2 == 1 {
				cell += "`"
			}
			for _, m := range inCode.FindAllStringSubmatch(cell, -1) {
				if s := real.Replace(m[1]); strings.HasPrefix(s, "ext.") || strings.HasPrefix(s, "$") || s == "_INBOX.>" {
					want = append(want, s)
				}
			}
			own := "_INBOX." + u.Username + ".>" // "its inbox" on the page
			if i == 3 && !slices.Contains(have, own) {
				t.Errorf("%s may not subscribe to %s", row[0], own)
			}
			have = slices.DeleteFunc(slices.Clone(have), func(s string) bool { return s == own })
			slices.Sort(want)
			slices.Sort(have)
			if !slices.Equal(want, have) {
				t.Errorf("%s, column %d: the page has\n%q, roles.conf\n%q", row[0], i, want, have)
			}
		}
		if p.Response != nil {
			t.Errorf("%s has allow_responses, for which the server keeps every request", row[0])
		}
	}
	if len(roles) != len(user) {
		t.Errorf("%d roles on the page, want %d", len(roles), len(user))
	}
}
