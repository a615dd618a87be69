package deploy_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// manifests returns the decoded manifests of deploy/k8s.
type manifests struct {
	configs   map[string]core.ConfigMap
	secrets   map[string]core.Secret
	services  map[string]core.Service
	budgets   map[string]policy.PodDisruptionBudget
	ingresses []networking.Ingress
	workloads []workload
}

// workload is a Deployment or a StatefulSet.
type workload struct {
	kind     string
	meta     meta.ObjectMeta
	replicas int
	selector *meta.LabelSelector
	pod      core.PodTemplateSpec
	claims   []core.PersistentVolumeClaim
}

// decode decodes strictly: an unknown member is an error.
func decode[T any](t *testing.T, file string, doc []byte) (v T) {
	t.Helper()
	if err := yaml.UnmarshalStrict(doc, &v); err != nil {
		t.Errorf("%s: %v", file, err)
	}
	return v
}

func readManifests(t *testing.T) manifests {
	t.Helper()
	m := manifests{map[string]core.ConfigMap{}, map[string]core.Secret{}, map[string]core.Service{}, map[string]policy.PodDisruptionBudget{}, nil, nil}
	files, err := filepath.Glob(filepath.Join(root, "deploy/k8s/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	for _, path := range files {
		file := filepath.Base(path)
		for _, doc := range strings.Split(read(t, "deploy/k8s", file), "\n---\n") {
			m.add(t, file, []byte(doc))
		}
	}
	return m
}

func (m *manifests) add(t *testing.T, file string, doc []byte) {
	t.Helper()
	var head struct {
		meta.TypeMeta   `json:",inline"`
		meta.ObjectMeta `json:"metadata"`
	}
	if err := yaml.Unmarshal(doc, &head); err != nil {
		t.Errorf("%s: %v", file, err)
		return
	}
	if head.Namespace != "extmesh" && head.Kind != "Namespace" {
		t.Errorf("%s: %s %s is in the namespace %q", file, head.Kind, head.Name, head.Namespace)
	}
	switch head.APIVersion + " " + head.Kind {
	case "v1 Namespace":
		decode[core.Namespace](t, file, doc)
	case "v1 ConfigMap":
		m.configs[head.Name] = decode[core.ConfigMap](t, file, doc)
	case "v1 Secret":
		m.secrets[head.Name] = decode[core.Secret](t, file, doc)
	case "v1 Service":
		m.services[head.Name] = decode[core.Service](t, file, doc)
	case "policy/v1 PodDisruptionBudget":
		m.budgets[head.Name] = decode[policy.PodDisruptionBudget](t, file, doc)
	case "networking.k8s.io/v1 NetworkPolicy":
		p := decode[networking.NetworkPolicy](t, file, doc)
		for _, in := range p.Spec.Ingress {
			if len(in.From) == 0 || len(in.Ports) == 0 {
				t.Errorf("%s: the network policy %s allows access from everywhere", file, head.Name)
			}
		}
	case "networking.k8s.io/v1 Ingress":
		m.ingresses = append(m.ingresses, decode[networking.Ingress](t, file, doc))
	case "apps/v1 Deployment":
		d := decode[apps.Deployment](t, file, doc)
		m.workloads = append(m.workloads, workload{head.Kind, d.ObjectMeta, int(*d.Spec.Replicas), d.Spec.Selector, d.Spec.Template, nil})
	case "apps/v1 StatefulSet":
		s := decode[apps.StatefulSet](t, file, doc)
		m.workloads = append(m.workloads, workload{head.Kind, s.ObjectMeta, int(*s.Spec.Replicas), s.Spec.Selector, s.Spec.Template, s.Spec.VolumeClaimTemplates})
		if _, ok := m.services[s.Spec.ServiceName]; !ok && !strings.Contains(read(t, "deploy/k8s", file), "kind: Service") {
			t.Errorf("%s: there is no service %s", file, s.Spec.ServiceName)
		}
	default:
		t.Errorf("%s: no check for a %s of %s", file, head.Kind, head.APIVersion)
	}
}

func TestK8sManifests(t *testing.T) {
	m := readManifests(t)
	replicas := map[string]int{}
	for _, w := range m.workloads {
		replicas[w.meta.Name] = w.replicas
		w.check(t, m)
	}
	for name, want := range map[string]int{"nats": 3, "registry": 2, "bridge": 2, "primes": 2, "mcp": 1} {
		if replicas[name] != want {
			t.Errorf("%s has %d replicas, want %d", name, replicas[name], want)
		}
		if _, ok := m.budgets[name]; !ok && name != "primes" && want > 1 {
			t.Errorf("%s may be drained away as a whole", name)
		}
	}
	for _, in := range m.ingresses {
		for _, rule := range in.Spec.Rules {
			if len(in.Spec.TLS) != 1 || !slices.Contains(in.Spec.TLS[0].Hosts, rule.Host) {
				t.Errorf("%s: no TLS for %s", in.Name, rule.Host)
			}
			for _, path := range rule.HTTP.Paths {
				to := path.Backend.Service
				if !slices.ContainsFunc(m.services[to.Name].Spec.Ports, func(p core.ServicePort) bool { return p.Name == to.Port.Name }) {
					t.Errorf("%s: there is no service %s with the port %s", in.Name, to.Name, to.Port.Name)
				}
			}
		}
	}
	for user, key := range users(t) {
		if m.secrets["nats-passwords"].StringData[key] == "" {
			t.Errorf("there is no password for %s", user)
		}
	}
	for _, secret := range []string{"nats-contexts", "bridge-contexts"} {
		for file, text := range m.secrets[secret].StringData {
			c := parseContext(t, text)
			if c.User+".json" != file || c.Password != m.secrets["nats-passwords"].StringData[users(t)[c.User]] || c.InboxPrefix != "_INBOX."+c.User {
				t.Errorf("%s logs in as %+v", file, c)
			}
		}
	}
	for _, name := range []string{"plugin.toml", "hello.sh"} {
		if m.configs["extension-hello"].Data[name] != read(t, "examples/extensions/hello", name) {
			t.Errorf("the ConfigMap's %s differs from examples/extensions/hello; run go test -update", name)
		}
	}
}

func (w workload) check(t *testing.T, m manifests) {
	t.Helper()
	name := w.meta.Name
	for k, v := range w.selector.MatchLabels {
		if w.pod.Labels[k] != v {
			t.Errorf("%s: its selector does not find its pods", name)
		}
	}
	volumes := map[string]bool{}
	for _, v := range w.pod.Spec.Volumes {
		volumes[v.Name] = true
		if c := v.ConfigMap; c != nil && m.configs[c.Name].Data == nil {
			t.Errorf("%s: there is no ConfigMap %s", name, c.Name)
		}
		if s := v.Secret; s != nil && m.secrets[s.SecretName].StringData == nil {
			t.Errorf("%s: there is no Secret %s", name, s.SecretName)
		}
	}
	for _, c := range w.claims {
		volumes[c.Name] = true
	}
	if s := w.pod.Spec.TerminationGracePeriodSeconds; s == nil || *s < 30 {
		t.Errorf("%s: calls in flight have no time", name)
	}
	for _, c := range w.pod.Spec.Containers {
		for _, mount := range c.VolumeMounts {
			if !volumes[mount.Name] {
				t.Errorf("%s: there is no volume %s", name, mount.Name)
			}
		}
		ports := map[string]int32{}
		for _, p := range c.Ports {
			ports[p.Name] = p.ContainerPort
		}
		for what, p := range map[string]*core.Probe{"liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
			if name == "nats" && p != nil && p.Exec != nil { // the monitoring port is accessible only in the pod
				if at := p.Exec.Command[len(p.Exec.Command)-1]; !strings.HasPrefix(at, "http://127.0.0.1:8222/healthz?") {
					t.Errorf("%s: its %s probe asks %s", name, what, at)
				}
				continue
			}
			if p == nil || p.HTTPGet == nil {
				if name != "primes" {
					t.Errorf("%s has no %s probe", name, what)
				}
				continue
			}
			if p.HTTPGet.Port.Type != intstr.String || ports[p.HTTPGet.Port.StrVal] == 0 {
				t.Errorf("%s: its %s probe asks port %v, which is not there", name, what, p.HTTPGet.Port)
			}
			at := fmt.Sprintf("--http=:%d", ports["http"])
			if name == "mcp" {
				at = fmt.Sprintf("--admin=:%d", ports["http"])
			}
			if name != "nats" && !slices.Contains(c.Args, at) {
				t.Errorf("%s: its %s probe connects to a port on which no program listens", name, what)
			}
		}
		if c.Resources.Limits.Memory().IsZero() {
			t.Errorf("%s has no limit of memory", name)
		}
		if c.SecurityContext == nil || *c.SecurityContext.AllowPrivilegeEscalation || !*c.SecurityContext.ReadOnlyRootFilesystem ||
			len(c.SecurityContext.Capabilities.Drop) == 0 || !*w.pod.Spec.SecurityContext.RunAsNonRoot {
			t.Errorf("%s may be root", name)
		}
		for _, e := range c.Env {
			if name != "nats" && (e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil || strings.Contains(e.Value, "nats://")) {
				t.Errorf("%s has %s in its environment; credentials are files", name, e.Name)
			}
		}
	}
}

var variable = regexp.MustCompile(`\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

// process returns the process of one pod of w, with its mounts in a directory of this machine. swap replaces text in them.
func (w workload) process(t *testing.T, m manifests, ordinal int, swap *strings.Replacer) process {
	t.Helper()
	name := fmt.Sprintf("%s-%d", w.meta.Name, ordinal)
	c := w.pod.Spec.Containers[0]
	env := map[string]string{}
	for _, from := range c.EnvFrom {
		for k, v := range m.secrets[from.SecretRef.Name].StringData {
			env[k] = v
		}
	}
	expand := func(s string) string {
		return variable.ReplaceAllStringFunc(s, func(ref string) string {
			v, ok := env[ref[2:len(ref)-1]]
			if !ok {
				t.Errorf("%s: %s is not set when it is used", name, ref)
			}
			return v
		})
	}
	for _, e := range c.Env {
		switch from := e.ValueFrom; {
		case from == nil:
			env[e.Name] = expand(e.Value)
		case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.name":
			env[e.Name] = name
		case from.SecretKeyRef != nil:
			v, ok := m.secrets[from.SecretKeyRef.Name].StringData[from.SecretKeyRef.Key]
			if !ok {
				t.Errorf("%s: the secret %s has no %s", name, from.SecretKeyRef.Name, from.SecretKeyRef.Key)
			}
			env[e.Name] = v
		default:
			t.Errorf("%s: cannot resolve %s", name, e.Name)
		}
	}
	dir := t.TempDir()
	paths := w.mount(t, m, dir, expand, swap)
	p := process{name: name, env: env}
	if len(c.Command) > 0 {
		p.program, p.args = c.Command[0], slices.Concat(c.Command[1:], c.Args)
	} else {
		target, ok := strings.CutPrefix(c.Image, "extmesh/")
		if !ok {
			t.Errorf("%s: which program does %s run?", name, c.Image)
		}
		target, _, _ = strings.Cut(target, ":")
		p.program, p.args = entrypoint(t, target)
		if len(c.Args) > 0 {
			p.args = slices.Clone(c.Args)
		}
	}
	local := strings.NewReplacer(paths...)
	for i := range p.args {
		p.args[i] = local.Replace(swap.Replace(expand(p.args[i])))
	}
	for k, v := range env {
		env[k] = local.Replace(swap.Replace(v))
	}
	p.checkArgs(t)
	return p
}

// mount creates a pod's volumes under dir, and returns the replacements for their paths.
func (w workload) mount(t *testing.T, m manifests, dir string, expand func(string) string, swap *strings.Replacer) (paths []string) {
	t.Helper()
	files := map[string]map[string]string{}
	modes := map[string]fs.FileMode{}
	for _, v := range w.pod.Spec.Volumes {
		switch {
		case v.ConfigMap != nil:
			files[v.Name] = m.configs[v.ConfigMap.Name].Data
		case v.Secret != nil:
			files[v.Name] = m.secrets[v.Secret.SecretName].StringData
			if v.Secret.DefaultMode != nil {
				modes[v.Name] = fs.FileMode(*v.Secret.DefaultMode)
			}
		}
	}
	put := func(path, text string, mode fs.FileMode) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		text = strings.ReplaceAll(swap.Replace(text), `"/data/`, `"`+dir+`/data/`)
		if err := os.WriteFile(path, []byte(text), cmp.Or(mode, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, mount := range w.pod.Spec.Containers[0].VolumeMounts {
		top := "/" + strings.Split(mount.MountPath, "/")[1]
		paths = append(paths, top, dir+top)
		at := filepath.Join(dir, mount.MountPath)
		sub := expand(mount.SubPath + mount.SubPathExpr)
		switch data := files[mount.Name]; {
		case data == nil:
			if err := os.MkdirAll(at, 0o755); err != nil {
				t.Fatal(err)
			}
		case sub != "":
			text, ok := data[sub]
			if !ok {
				t.Errorf("%s: %s has no %s", w.meta.Name, mount.Name, sub)
			}
			put(at, text, modes[mount.Name])
		default:
			for name, text := range data {
				put(filepath.Join(at, name), text, modes[mount.Name])
			}
		}
	}
	return paths
}

// TestK8sRuns runs the pods' commands as processes: three NATS servers in a cluster, and two pods of everything else.
func TestK8sRuns(t *testing.T) {
	m := readManifests(t)
	var clients, swaps []string
	routes := []string{}
	for i := range 3 {
		clients = append(clients, "127.0.0.1:"+port(t))
		route := "127.0.0.1:" + port(t)
		routes = append(routes, route)
		swaps = append(swaps, fmt.Sprintf("@nats-%d.nats:6222", i), "@"+route)
	}
	var all []process
	door := "127.0.0.1:" + port(t)
	swaps = append(swaps, "0.0.0.0:7331", door, strings.Repeat("0", 64), sha256Of("ada"))
	for _, w := range m.workloads {
		for i := range w.replicas {
			mine := append([]string{
				"@nats:4222", "@" + clients[i], "nats://nats:4222", "nats://" + clients[i], ":8080", "127.0.0.1:0",
				`"127.0.0.1:8222"`, `"127.0.0.1:-1"`, `"0.0.0.0:4222"`, `"` + clients[i] + `"`, `"0.0.0.0:6222"`, `"` + routes[i] + `"`,
			}, swaps...)
			all = append(all, w.process(t, m, i, strings.NewReplacer(mine...)))
		}
	}
	operator := fmt.Sprintf("nats://operator:%s@%s", m.secrets["nats-passwords"].StringData["OPERATOR_PASSWORD"], clients[1])
	runMesh(t, all, nil, operator, "hello", "primes")
	awaitMCP(t, http.DefaultClient, "http://"+door+"/mcp", "ada")
}

// TestK8sConfig compares the ConfigMaps with the files that they contain.
func TestK8sConfig(t *testing.T) {
	var out bytes.Buffer
	out.WriteString("# Made by go test -update in deploy/test from deploy/nats and examples/extensions/hello.\n")
	one := func(name, dir string, files ...string) {
		fmt.Fprintf(&out, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: %s\n  namespace: extmesh\ndata:\n", name)
		for _, f := range files {
			fmt.Fprintf(&out, "  %s: |\n", f)
			for line := range strings.Lines(read(t, dir, f)) {
				if line != "\n" {
					line = "    " + line
				}
				out.WriteString(line)
			}
		}
	}
	one("nats-config", "deploy/nats", "three.conf", "settings.conf", "roles.conf")
	out.WriteString("---\n")
	one("extension-hello", "examples/extensions/hello", "plugin.toml", "hello.sh")
	path := filepath.Join(root, "deploy/k8s/nats-config.yaml")
	if *update {
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, out.Bytes()) {
		t.Errorf("deploy/k8s/nats-config.yaml differs from its sources (%v); run go test -update", err)
	}
}
