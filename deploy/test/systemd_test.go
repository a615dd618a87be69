package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
)

// service reads a unit file into section.name → values.
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

// systemdUnits are the processes of deploy/systemd, with the variables that their files of environment would set.
func systemdUnits(t *testing.T) (units []process) {
	t.Helper()
	for program, env := range map[string]map[string]string{
		"registry":     {"NATS_URL": "nats://registry:s1@nats:4222"},
		"stdio-bridge": {"NATS_URL": "nats://bridge-0:s2@nats:4222", "BRIDGE_NAME": "bridge-0"},
		"primes":       {"NATS_URL": "nats://primes:s3@nats:4222"},
	} {
		s := service(t, program)
		start := s["Service.ExecStart"]
		if len(start) != 1 {
			t.Fatalf("%s: ExecStart %q", program, start)
		}
		words := strings.Fields(os.Expand(start[0], func(k string) string {
			if env[k] == "" {
				t.Errorf("%s: no value for %s", program, k)
			}
			return env[k]
		}))
		if words[0] != "/usr/local/bin/"+program {
			t.Errorf("%s runs %s", program, words[0])
		}
		if len(s["Service.EnvironmentFile"]) != 1 || len(s["Install.WantedBy"]) != 1 || s["Service.Restart"][0] != "always" {
			t.Errorf("%s: %v", program, s)
		}
		u := process{name: program, program: program, args: words[1:], env: env}
		u.checkArgs(t)
		units = append(units, u)
	}
	if mode := service(t, "stdio-bridge")["Service.KillMode"]; len(mode) != 1 || mode[0] != "mixed" {
		t.Errorf("KillMode %q: the children would be stopped before their calls are answered", mode)
	}
	return units
}

// TestSystemdRuns runs the units' commands as processes.
func TestSystemdRuns(t *testing.T) {
	at := "127.0.0.1:" + port(t)
	etc := natsFiles(t, `"0.0.0.0:4222"`, `"`+at+`"`, `"0.0.0.0:8222"`, `"127.0.0.1:-1"`, `"/data/jetstream"`, `"`+t.TempDir()+`"`)
	server := process{name: "nats", program: "nats-server", args: []string{"-c", filepath.Join(etc, "one.conf")}, env: map[string]string{
		"REGISTRY_PASSWORD": "s1", "BRIDGE_0_PASSWORD": "s2", "BRIDGE_1_PASSWORD": "s2", "PRIMES_PASSWORD": "s3", "AGENT_PASSWORD": "s4",
		"OPERATOR_PASSWORD": "s5", "SYS_PASSWORD": "s6",
	}}
	runMesh(t, append(systemdUnits(t), server), map[string]string{
		"@nats:4222": "@" + at, "/srv/extmesh/extensions": extensions(t), "/var/lib/extmesh": t.TempDir(),
		"127.0.0.1:8223": "127.0.0.1:0", "127.0.0.1:8224": "127.0.0.1:0",
	}, "nats://operator:s5@nats:4222", "hello", "primes")
}

// TestSystemdVerify has systemd itself read the units, where it is installed.
func TestSystemdVerify(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here")
	}
	dir := t.TempDir()
	for _, name := range []string{"registry", "stdio-bridge", "primes"} {
		text := strings.ReplaceAll(read(t, "deploy/systemd", name+".service"), "/usr/local/bin/"+name, binary(t, name))
		path := filepath.Join(dir, name+".service")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), analyze, "verify", path).CombinedOutput(); err != nil || strings.Contains(string(out), name+".service") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
