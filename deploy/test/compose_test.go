package deploy_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// project is docker-compose.yml as docker compose reads it.
func project(t *testing.T, env ...string) *types.Project {
	t.Helper()
	dir, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	o, err := cli.NewProjectOptions([]string{filepath.Join(dir, "docker-compose.yml")},
		cli.WithWorkingDirectory(dir), cli.WithEnv(env), cli.WithProfiles([]string{"tools"}))
	if err != nil {
		t.Fatal(err)
	}
	p, err := o.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// composeUnits are the processes of a project, and what its extctl is told.
func composeUnits(t *testing.T, p *types.Project) (units []process, operator string) {
	t.Helper()
	for _, name := range p.ServiceNames() {
		s := p.Services[name]
		u := process{name: name, program: "nats-server", args: s.Command[1:], env: map[string]string{}}
		if s.Build != nil {
			u.program, u.args = entrypoint(t, s.Build.Target)
			if len(s.Command) > 0 {
				u.args = s.Command
			}
			if len(s.Entrypoint) > 0 {
				u.args = slices.Concat(s.Entrypoint[1:], s.Command)
			}
		}
		for k, v := range s.Environment {
			if v == nil {
				t.Errorf("%s: %s has no value", name, k)
				continue
			}
			u.env[k] = *v
		}
		u.checkArgs(t)
		if u.program == "extctl" {
			operator = u.env["NATS_URL"]
			continue
		}
		for i := range s.GetScale() {
			v := u
			v.name = fmt.Sprintf("%s-%d", name, i+1)
			units = append(units, v)
		}
	}
	return units, operator
}

func TestCompose(t *testing.T) {
	p := project(t)
	scale := map[string]int{"nats": 1, "registry": 2, "bridge": 1, "primes": 1, "extctl": 1}
	known := users(t)
	for name, n := range scale {
		s, ok := p.Services[name]
		if !ok {
			t.Errorf("there is no service %s", name)
			continue
		}
		if got := s.GetScale(); got != n {
			t.Errorf("%s: %d containers, want %d", name, got, n)
		}
		for _, v := range s.Volumes {
			if _, err := os.Stat(v.Source); v.Type == "bind" && err != nil {
				t.Errorf("%s mounts what is not there: %v", name, err)
			}
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes %s on %q, with the passwords of a desk", name, port.Published, port.HostIP)
			}
		}
		if name == "nats" {
			continue
		}
		if s.DependsOn["nats"].Condition != "service_healthy" {
			t.Errorf("%s does not wait for NATS", name)
		}
		at := s.Environment["NATS_URL"]
		for i, arg := range s.Command {
			if arg == "--nats-url" {
				at = &s.Command[i+1]
			}
		}
		if at == nil {
			t.Errorf("%s is not told where NATS is", name)
			continue
		}
		u, err := url.Parse(*at)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		password, _ := u.User.Password()
		set := p.Services["nats"].Environment[known[u.User.Username()]]
		if set == nil || *set != password {
			t.Errorf("%s logs in as %s with a password that the server does not have", name, u.User.Username())
		}
		if inbox := "_INBOX." + u.User.Username(); !slices.Contains(slices.Concat(s.Entrypoint, s.Command), inbox) {
			t.Errorf("%s may listen to %s only and is not told so", name, inbox)
		}
	}
	if len(p.Services) != len(scale) {
		t.Errorf("the services are %v", p.ServiceNames())
	}
	_, version, _ := strings.Cut(read(t, "go.mod"), "nats-io/nats-server/v2 v")
	version, _, _ = strings.Cut(version, "\n")
	if image := p.Services["nats"].Image; image != "nats:"+version+"-alpine" {
		t.Errorf("the server is %s, and tested is %s", image, version)
	}
}

// TestComposeRuns runs the commands of docker-compose.yml as processes, with passwords from the environment.
func TestComposeRuns(t *testing.T) {
	units, operator := composeUnits(t, project(t, "REGISTRY_PASSWORD=r1", "OPERATOR_PASSWORD=o2", "BRIDGE_0_PASSWORD=b3"))
	at := "127.0.0.1:" + port(t)
	etc := natsFiles(t, `"0.0.0.0:4222"`, `"`+at+`"`, `"0.0.0.0:8222"`, `"127.0.0.1:-1"`, `"/data/jetstream"`, `"`+t.TempDir()+`"`)
	runMesh(t, units, map[string]string{
		"@nats:4222": "@" + at, "/etc/nats": etc, "/extensions": extensions(t), "/state": t.TempDir(), ":8080": "127.0.0.1:0",
	}, operator, "hello", "primes")
}
