package deploy_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
)

// service parses a unit file into a map from section.name to values.
func service(t *testing.T, name string) map[string][]string {
	t.Helper()
	options, err := unit.DeserializeOptions(strings.NewReader(read(t, "deploy/systemd", name+".service")))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	out := map[string][]string{}
	for _, o := range options {
		out[o.Section+"."+o.Name] = append(out[o.Section+"."+o.Name], o.Value)
	}
	return out
}

// credential is the example, in a unit's comment, of the file for its LoadCredential=.
var credential = regexp.MustCompile(`#\s+(\{"url".*\})`)

// systemdUnits returns the processes of deploy/systemd. Their credentials are written to files in dir, after swap.
func systemdUnits(t *testing.T, dir string, swap *strings.Replacer) (units []process) {
	t.Helper()
	for program, user := range map[string]string{"registry": "registry", "stdio-bridge": "bridge-0", "primes": "primes", "mcp": "mcp"} {
		s := service(t, program)
		start := s["Service.ExecStart"]
		if len(start) != 1 {
			t.Fatalf("%s: ExecStart %q", program, start)
		}
		example := credential.FindStringSubmatch(read(t, "deploy/systemd", program+".service"))
		if example == nil {
			t.Fatalf("%s shows no context", program)
		}
		if c := parseContext(t, example[1]); c.User != user || c.InboxPrefix != "_INBOX."+user {
			t.Errorf("%s logs in as %+v", program, c)
		}
		mine := filepath.Join(dir, program)
		if err := os.MkdirAll(mine, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(mine, "nats.json"), []byte(swap.Replace(example[1])), 0o600); err != nil {
			t.Fatal(err)
		}
		if load := s["Service.LoadCredential"]; len(load) != 1 || !strings.HasPrefix(load[0], "nats.json:/etc/extmesh/") {
			t.Errorf("%s: LoadCredential %q", program, load)
		}
		env := map[string]string{"CREDENTIALS_DIRECTORY": mine}
		if program == "stdio-bridge" {
			env["BRIDGE_NAME"] = user
		}
		words := strings.Fields(os.Expand(start[0], func(k string) string {
			if env[k] == "" {
				t.Errorf("%s: no value for %s", program, k)
			}
			return env[k]
		}))
		runs := executable(program)
		if words[0] != "/usr/local/bin/"+runs {
			t.Errorf("%s runs %s", program, words[0])
		}
		if len(s["Install.WantedBy"]) != 1 || s["Service.Restart"][0] != "always" {
			t.Errorf("%s: %v", program, s)
		}
		u := process{name: program, program: runs, args: words[1:], env: env}
		u.checkArgs(t)
		units = append(units, u)
	}
	if mode := service(t, "stdio-bridge")["Service.KillMode"]; len(mode) != 1 || mode[0] != "mixed" {
		t.Errorf("KillMode %q: the children would be stopped before their calls are answered", mode)
	}
	return units
}

// executable is the program of a unit.
func executable(unit string) string {
	if unit == "mcp" {
		return "extctl"
	}
	return unit
}

// TestSystemdRuns runs the units' commands as processes.
func TestSystemdRuns(t *testing.T) {
	at, door := "127.0.0.1:"+port(t), "127.0.0.1:"+port(t)
	etc := natsFiles(t, `"0.0.0.0:4222"`, `"`+at+`"`, `"127.0.0.1:8222"`, `"127.0.0.1:-1"`, `"/data/jetstream"`, `"`+t.TempDir()+`"`)
	server := process{name: "nats", program: "nats-server", args: []string{"-c", filepath.Join(etc, "one.conf")}, env: map[string]string{
		"REGISTRY_PASSWORD": "s1", "BRIDGE_0_PASSWORD": "s1", "BRIDGE_1_PASSWORD": "s1", "PRIMES_PASSWORD": "s1", "AGENT_PASSWORD": "s1",
		"OPERATOR_PASSWORD": "s1", "SYS_PASSWORD": "s1", "MCP_PASSWORD": "s1",
	}}
	units := systemdUnits(t, t.TempDir(), strings.NewReplacer("nats://nats-0:4222,nats://nats-1:4222", "nats://"+at, "…", "s1"))
	runMesh(t, append(units, server), map[string]string{
		"/srv/extmesh/extensions": extensions(t), "/var/lib/extmesh": t.TempDir(),
		"127.0.0.1:8223": "127.0.0.1:0", "127.0.0.1:8224": "127.0.0.1:0", "127.0.0.1:8225": "127.0.0.1:0",
		"127.0.0.1:7331": door, "/etc/extmesh/tokens.yaml": tokens(t, "ada"),
	}, "nats://operator:s1@"+at, "hello", "primes")
	awaitMCP(t, http.DefaultClient, "http://"+door+"/mcp", "ada")
}

// exposure is the highest permitted score of "systemd-analyze security" for a unit, from 0 (protected) to 10 (exposed). The
// bridge's children need more permissions: what Node and Python need, and a writable control group.
var exposure = map[string]float64{"registry": 1.5, "primes": 1.5, "mcp": 1.5, "stdio-bridge": 2.0}

// TestSystemdSecurity prints the score of each unit.
func TestSystemdSecurity(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here")
	}
	score := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`)
	for unit, most := range exposure {
		path := filepath.Join(root, "deploy/systemd", unit+".service")
		out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=yes", "--no-pager", path).CombinedOutput()
		m := score.FindSubmatch(out)
		if err != nil || m == nil {
			t.Errorf("%s: %v\n%s", unit, err, out)
			continue
		}
		got, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s.service: %.1f of 10, at most %.1f", unit, got, most)
		if got > most {
			t.Errorf("%s.service is exposed by more than %.1f:\n%s", unit, most, out)
		}
	}
}

// TestSystemdVerify checks the units with systemd-analyze verify, where it is installed.
func TestSystemdVerify(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here")
	}
	dir := t.TempDir()
	for _, name := range []string{"registry", "stdio-bridge", "primes", "mcp"} {
		text := strings.ReplaceAll(read(t, "deploy/systemd", name+".service"), "/usr/local/bin/"+executable(name), binary(t, executable(name)))
		path := filepath.Join(dir, name+".service")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), analyze, "verify", path).CombinedOutput(); err != nil || strings.Contains(string(out), name+".service") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
