package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// natsServer is the path of the nats-server that go.mod names, built once.
var natsServer = sync.OnceValues(func() (string, error) {
	dir, err := programs()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "nats-server")
	if out, err := exec.Command("go", "build", "-o", path, "github.com/nats-io/nats-server/v2").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build nats-server: %w\n%s", err, out)
	}
	return path, nil
})

// roles are the users of deploy/nats/roles.conf, by what they are on the mesh.
var roles = map[string]string{"registry": "registry", "bridge": "bridge-0", "extension": "primes", "agent": "agent", "operator": "operator"}

// password is that of every user in a test.
func password(user string) string { return "secret" + strings.ReplaceAll(user, "-", "") }

// passwords is the environment that the shipped configurations want.
func passwords() []string {
	var env []string
	for _, user := range []string{"registry", "bridge-0", "bridge-1", "primes", "agent", "operator", "sys", "route"} {
		env = append(env, strings.ToUpper(strings.ReplaceAll(user, "-", "_"))+"_PASSWORD="+password(user))
	}
	return env
}

// as is url with a user's name and password in it.
func as(url, user string) string {
	return strings.Replace(url, "nats://", "nats://"+user+":"+password(user)+"@", 1)
}

// startShipped runs one server as deploy/nats has it, but for its ports, its directory and what also swaps: texts
// and what stands in their place.
func startShipped(t *testing.T, file string, env []string, also ...string) (url string, p *process) {
	t.Helper()
	dir := t.TempDir()
	swap := append([]string{
		`listen: "0.0.0.0:4222"`, fmt.Sprintf("listen: \"127.0.0.1:-1\"\nports_file_dir: %q", dir),
		`"0.0.0.0:8222"`, `"127.0.0.1:-1"`,
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
	server, err := natsServer()
	if err != nil {
		t.Fatal(err)
	}
	p = start(t, append(passwords(), env...), server, "-c", filepath.Join(dir, file))
	ports := filepath.Join(dir, fmt.Sprintf("nats-server_%d.ports", p.cmd.Process.Pid))
	eventually(t, 20*time.Second, file+" runs", func() bool {
		select {
		case <-p.done:
			t.Fatalf("nats-server ended: %v\n%s", p.err, p.output())
		default:
		}
		data, err := os.ReadFile(ports)
		var listens struct {
			NATS []string `json:"nats"`
		}
		if err != nil || json.Unmarshal(data, &listens) != nil || len(listens.NATS) == 0 {
			return false
		}
		url = listens.NATS[0]
		return true
	})
	return url, p
}
