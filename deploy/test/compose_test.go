package deploy_test

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// project parses docker-compose.yml the way docker compose does.
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

// composeUnits returns the processes of a project, with their secrets written to files in dir, and the URL of its extctl.
func composeUnits(t *testing.T, p *types.Project, dir string, swap *strings.Replacer) (units []process, operator string) {
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
		for _, secret := range s.Secrets {
			text, err := os.ReadFile(p.Secrets[secret.Source].File)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, secret.Source)
			if err := os.WriteFile(file, []byte(swap.Replace(string(text))), 0o600); err != nil {
				t.Fatal(err)
			}
			u.args = slices.Clone(u.args)
			for i, a := range u.args {
				u.args[i] = strings.ReplaceAll(a, "/run/secrets/"+secret.Source, file)
			}
			if name == "extctl" {
				operator = parseContext(t, swap.Replace(string(text))).login()
			}
		}
		for _, config := range s.Configs {
			file := filepath.Join(dir, config.Source)
			if err := os.WriteFile(file, []byte(p.Configs[config.Source].Content), fs.FileMode(*config.Mode)); err != nil {
				t.Fatal(err)
			}
			u.args = slices.Clone(u.args)
			u.args[slices.Index(u.args, config.Target)] = file
		}
		u.checkArgs(t)
		if name == "extctl" {
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
	scale := map[string]int{"nats": 1, "registry": 2, "bridge": 1, "primes": 1, "mcp": 1, "extctl": 1}
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
		if len(s.Configs) > 0 == s.ReadOnly { // compose cannot write into a read-only container
			t.Errorf("%s: read_only is %t, with the configs %v", name, s.ReadOnly, s.Configs)
		}
		if len(s.Environment) > 0 {
			t.Errorf("%s has %v in its environment; credentials are files", name, s.Environment)
		}
		if len(s.Secrets) != 1 {
			t.Errorf("%s has the secrets %v, want its context", name, s.Secrets)
			continue
		}
		file := s.Secrets[0].Source
		text, err := os.ReadFile(p.Secrets[file].File)
		if err != nil {
			t.Error(err)
			continue
		}
		c := parseContext(t, string(text))
		set := p.Services["nats"].Environment[known[c.User]]
		if set == nil || *set != c.Password || c.InboxPrefix != "_INBOX."+c.User || c.User+".json" != file {
			t.Errorf("%s logs in as %s, with an inbox or a password that the server does not have", name, c.User)
		}
		if at := "/run/secrets/" + file; !slices.Contains(slices.Concat(s.Entrypoint, s.Command), at) {
			t.Errorf("%s is not given %s", name, at)
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
	at := "127.0.0.1:" + port(t)
	mine := strings.NewReplacer("devregistry", "r1", "devoperator", "o2", "devbridge0", "b3", "//nats:4222", "//"+at)
	units, operator := composeUnits(t, project(t, "REGISTRY_PASSWORD=r1", "OPERATOR_PASSWORD=o2", "BRIDGE_0_PASSWORD=b3"), t.TempDir(), mine)
	etc := natsFiles(t, `"0.0.0.0:4222"`, `"`+at+`"`, `"127.0.0.1:8222"`, `"127.0.0.1:-1"`, `"/data/jetstream"`, `"`+t.TempDir()+`"`)
	door := "127.0.0.1:" + port(t)
	runMesh(t, units, map[string]string{
		"/etc/nats": etc, "/extensions": extensions(t), "/state": t.TempDir(), ":8080": "127.0.0.1:0", "0.0.0.0:7331": door,
	}, operator, "hello", "primes")
	awaitMCP(t, http.DefaultClient, "http://"+door+"/mcp", "devmcp")
}
