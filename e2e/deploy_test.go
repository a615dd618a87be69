package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// roles maps each role to a user in deploy/nats/roles.conf.
var roles = map[string]string{"registry": "registry", "bridge": "bridge-0", "extension": "primes", "agent": "agent", "operator": "operator"}

// password returns a user's password in the tests.
func password(user string) string { return "secret" + strings.ReplaceAll(user, "-", "") }

// passwords returns the environment variables that the shipped configurations need.
func passwords() []string {
	var env []string
	for _, user := range []string{"registry", "bridge-0", "bridge-1", "primes", "agent", "operator", "sys", "route", "mcp"} {
		env = append(env, strings.ToUpper(strings.ReplaceAll(user, "-", "_"))+"_PASSWORD="+password(user))
	}
	return env
}

// as returns url with a user's name and password.
func as(url, user string) string {
	return strings.Replace(url, "nats://", "nats://"+user+":"+password(user)+"@", 1)
}

// startShipped starts a server with a configuration of deploy/nats. It replaces ports and directories, and the texts in also,
// which has pairs of old and new text.
func startShipped(t testing.TB, file string, env []string, also ...string) (url string, p *process) {
	t.Helper()
	dir := t.TempDir()
	swap := append([]string{
		`listen: "0.0.0.0:4222"`, fmt.Sprintf("listen: \"127.0.0.1:-1\"\nports_file_dir: %q", dir),
		`"127.0.0.1:8222"`, `"127.0.0.1:-1"`,
		`"/data/jetstream"`, fmt.Sprintf("%q", filepath.Join(dir, "js")),
	}, also...)
	all := ""
	for _, name := range []string{file, "settings.conf", "roles.conf"} {
		text, err := os.ReadFile(filepath.Join("../deploy/nats", name))
		if err != nil {
			t.Fatal(err)
		}
		all += string(text)
		write(t, filepath.Join(dir, name), strings.NewReplacer(swap...).Replace(string(text)))
	}
	for i := 0; i < len(swap); i += 2 {
		if !strings.Contains(all, swap[i]) {
			t.Fatalf("%s has no %s to replace", file, swap[i])
		}
	}
	return startServer(t, append(passwords(), env...), filepath.Join(dir, file))
}

// TestNATSConfigs parses the shipped configurations with the server's parser, and checks the result.
func TestNATSConfigs(t *testing.T) {
	for _, v := range append(passwords(), "NATS_SERVER_NAME=nats-1", `NATS_ROUTES=["nats://route:x@nats-0.nats:6222","nats://route:x@nats-1.nats:6222"]`) {
		k, value, _ := strings.Cut(v, "=")
		t.Setenv(k, value)
	}
	for file, routes := range map[string]int{"one.conf": 0, "three.conf": 2} {
		o, err := server.ProcessConfigFile("../deploy/nats/" + file)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		switch {
		case o.PingInterval != 2*time.Second, o.MaxPingsOut != 2, o.MaxPayload != 4<<20, o.WriteDeadline != 30*time.Second,
			o.LameDuckDuration != 30*time.Second, o.AuthTimeout != 5, o.SyncInterval != 10*time.Second, !o.JetStream, o.SystemAccount != "SYS":
			t.Errorf("%s: not what nats-server was meant to understand: %+v", file, o)
		case len(o.Routes) != routes, routes > 0 && (o.Cluster.Name == "" || o.Cluster.Password != password("route") || o.ServerName != "nats-1"):
			t.Errorf("%s: routes %v, cluster %+v", file, o.Routes, o.Cluster)
		}
		for _, u := range o.Users {
			p := u.Permissions
			if u.Username == "sys" {
				continue
			}
			if u.Password != password(u.Username) || p == nil || len(p.Publish.Allow) == 0 || len(p.Subscribe.Allow) == 0 || p.Response != nil {
				t.Errorf("%s: user %s: %+v", file, u.Username, p)
			}
		}
	}
	// A password that the server would parse as a number is refused.
	t.Setenv("AGENT_PASSWORD", "12345")
	if _, err := server.ProcessConfigFile("../deploy/nats/one.conf"); err == nil {
		t.Error("a password of digits is accepted; then roles.conf need not forbid it")
	}
	t.Setenv("AGENT_PASSWORD", "")
	os.Unsetenv("AGENT_PASSWORD")
	if _, err := server.ProcessConfigFile("../deploy/nats/one.conf"); err == nil {
		t.Error("a server without a password for a user starts")
	}
}
