package extmesh_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/extmesh/extmesh/"

// layers is the architecture, from the ground up (docs/decisions/0001-layers.md). A package may import its own
// layer and those below. A path stands for the packages under it, too.
var layers = []struct {
	name string
	dirs []string
}{
	{"pure", []string{"pkg/rpc", "pkg/manifest", "pkg/heartbeat", "internal/supervise", "internal/load",
		"internal/nearest", "internal/plainjson", "internal/aside", "internal/rawio", "internal/leaks", "internal/freeport"}},
	{"one host", []string{"internal/config", "internal/discovery", "internal/gate", "internal/child",
		"internal/breaker", "internal/remote"}},
	{"mesh", []string{"internal/natsconn", "pkg/mesh"}},
	{"programs", []string{"internal/bridge", "internal/registry", "internal/natsd", "internal/daemon"}},
	{"commands", []string{"cmd", "e2e", "bench"}},
}

// confined lists what only some packages may import themselves. Tests are free of it.
var confined = []struct {
	path string
	only []string // empty: tests only
	why  string
}{
	{"github.com/BurntSushi/toml", []string{"pkg/manifest"},
		"one package knows the manifest's format; the rest sees manifest.Manifest"},
	{"github.com/goccy/go-yaml", []string{"internal/config", "pkg/manifest"},
		"YAML is the format of extensions.yaml and of a SKILL.md's front matter, and nobody else's business"},
	{"github.com/failsafe-go/failsafe-go", []string{"internal/breaker"},
		"its half-open state jams or closes wrongly without the tokens that internal/breaker adds"},
	{"github.com/nats-io/nats-server", []string{"internal/natsd"},
		"the embedded server has one owner, who holds the lock on its store"},
	{"github.com/nats-io/nats.go", []string{"internal/natsconn", "pkg/mesh", "internal/bridge", "internal/registry", "internal/natsd",
		"internal/daemon", "cmd", "e2e", "bench", "examples/services"},
		"what runs below pkg/mesh is tested without a server, and would work over another wire"},
	{"github.com/santhosh-tekuri/jsonschema", []string{"pkg/mesh/schema"},
		"strangers' schemas are bounded in one place"},
	{"github.com/spf13", []string{"cmd"},
		"flags are for main; a package takes a plain struct"},
	{"go.uber.org/goleak", []string{"internal/leaks"}, "it is a test's tool"},
	{module + "internal/leaks", nil, "it is a test's tool"},
	{module + "internal/freeport", nil, "it is a test's tool"},
	{"github.com/rogpeppe/go-internal", nil, "it is a test's tool"},
	{"golang.org/x/tools/txtar", nil, "it is a test's tool"},
}

// unreached lists what must not even be reached through others: it would be linked into the binary.
var unreached = []struct {
	path string
	from []string
	why  string
}{
	{"github.com/nats-io/nats.go", []string{"pkg/rpc", "pkg/manifest", "pkg/heartbeat", "internal/supervise",
		"internal/config", "internal/discovery", "internal/gate", "internal/child", "internal/breaker",
		"internal/remote"}, "no NATS below pkg/mesh"},
	{"github.com/nats-io/nats-server", []string{"pkg", "internal/bridge", "internal/registry", "cmd/registry",
		"cmd/stdio-bridge"}, "only extctl carries a server; the others would grow by one they never start"},
	{"github.com/santhosh-tekuri/jsonschema", []string{"internal/bridge", "internal/registry", "cmd/registry", "cmd/stdio-bridge"},
		"it compiles the schemas of all drafts as a program starts, which takes as long as all the rest of that; only callers need it"},
	{"os/exec", []string{"pkg/rpc", "pkg/heartbeat", "internal/supervise"},
		"pure packages are tested in a synctest bubble, where processes and virtual time do not mix"},
	{"net", []string{"pkg/heartbeat", "internal/supervise"},
		"pure packages are functions of their arguments and the time"},
}

// listed is what go list says of a package.
type listed struct {
	ImportPath   string
	Dir          string
	Name         string
	GoFiles      []string
	CgoFiles     []string
	Ignored      []string `json:"IgnoredGoFiles"` // for other systems
	Imports      []string
	Deps         []string
	TestImports  []string
	XTestImports []string
}

// violations judges packages by the tables above.
func violations(packages []listed) []string {
	var out []string
	say := func(p, imported, format string, args ...any) {
		out = append(out, fmt.Sprintf("%s imports %s: %s", p, imported, fmt.Sprintf(format, args...)))
	}
	for _, p := range packages {
		here := strings.TrimPrefix(p.ImportPath, module)
		if len(p.GoFiles)+len(p.CgoFiles) == 0 {
			continue // not written yet, or tests only
		}
		example := under(here, "examples")
		rank := rankOf(here)
		if rank < 0 && !example {
			out = append(out, here+" is in no layer: say in layers_test.go where it belongs")
		}
		for _, imported := range p.Imports {
			there, ours := strings.CutPrefix(imported, module)
			switch {
			case ours && example && !under(there, "pkg"):
				say(here, there, "an example uses what its readers can use, and that is pkg/")
			case ours && !example && rank >= 0 && rankOf(there) > rank:
				say(here, there, "imports point down, and %q lies above %q", layers[rankOf(there)].name, layers[rank].name)
			}
			for _, c := range confined {
				if under(imported, c.path) && !anyUnder(here, c.only) {
					say(here, imported, "%s", c.why)
				}
			}
		}
		for _, u := range unreached {
			if anyUnder(here, u.from) && slices.ContainsFunc(p.Deps, func(d string) bool { return reaches(d, u.path) }) {
				say(here, u.path, "if only through others: %s", u.why)
			}
		}
		// The two programs talk over NATS or not at all, in their tests, too: those with both are in e2e.
		for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			there := strings.TrimPrefix(imported, module)
			if under(here, "internal/bridge") && under(there, "internal/registry") ||
				under(here, "internal/registry") && under(there, "internal/bridge") {
				say(here, there, "bridge and registry meet on the wire only; each is deployed without the other")
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func rankOf(dir string) int {
	for i, l := range layers {
		if anyUnder(dir, l.dirs) {
			return i
		}
	}
	return -1
}

// reaches is under, except that in the standard library net is not net/url.
func reaches(dep, path string) bool {
	return dep == path || strings.Contains(path, ".") && under(dep, path)
}

func under(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func anyUnder(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return under(path, d) })
}

func TestLayers(t *testing.T) {
	for _, v := range violations(list(t)) {
		t.Error(v)
	}
}

// TestViolations shows that each table can refuse.
func TestViolations(t *testing.T) {
	for _, tt := range []struct {
		dir     string
		imports string
		deps    string
		want    string // part of the one message; "" for none
	}{
		{dir: "pkg/mesh", imports: module + "pkg/rpc"},
		{dir: "pkg/mesh", imports: module + "internal/breaker"},
		{dir: "cmd/extctl", imports: module + "internal/natsd", deps: "github.com/nats-io/nats-server/v2/server"},
		{dir: "internal/config", imports: module + "internal/gate"},
		{dir: "examples/extensions/clock", imports: module + "pkg/mesh"},
		{dir: "internal/child", imports: "os/exec", deps: "os/exec"},
		{dir: "pkg/manifest", imports: "net/url", deps: "net/netip"},
		{dir: "pkg/rpc", imports: module + "pkg/mesh", want: `"mesh" lies above "pure"`},
		{dir: "pkg/mesh", imports: module + "internal/bridge", want: `"programs" lies above "mesh"`},
		{dir: "internal/bridge", imports: module + "cmd/extctl", want: `"commands" lies above "programs"`},
		{dir: "internal/bridge/sub", imports: module + "internal/registry", want: "on the wire only"},
		{dir: "internal/registry", imports: module + "internal/bridge", want: "on the wire only"},
		{dir: "internal/util", imports: "fmt", want: "in no layer"},
		{dir: "examples/extensions/clock", imports: module + "internal/child", want: "its readers can use"},
		{dir: "internal/config", imports: "github.com/BurntSushi/toml", want: "manifest's format"},
		{dir: "internal/gate", imports: "github.com/goccy/go-yaml/ast", want: "YAML"},
		{dir: "pkg/mesh", imports: "github.com/failsafe-go/failsafe-go/circuitbreaker", want: "half-open"},
		{dir: "cmd/extctl", imports: "github.com/nats-io/nats-server/v2/server", want: "one owner"},
		{dir: "internal/child", imports: "github.com/nats-io/nats.go/micro", want: "without a server"},
		{dir: "internal/bridge", imports: "github.com/spf13/cobra", want: "flags are for main"},
		{dir: "internal/child", imports: "go.uber.org/goleak", want: "a test's tool"},
		{dir: "internal/child", deps: "github.com/nats-io/nats.go", want: "no NATS below"},
		{dir: "cmd/registry", deps: "github.com/nats-io/nats-server/v2/server", want: "only extctl"},
		{dir: "internal/supervise", deps: "os/exec", want: "bubble"},
		{dir: "pkg/heartbeat", deps: "net", want: "functions of their arguments"},
	} {
		p := listed{ImportPath: module + tt.dir, GoFiles: []string{"x.go"}}
		if tt.imports != "" {
			p.Imports = []string{tt.imports}
		}
		if tt.deps != "" {
			p.Deps = []string{tt.deps}
		}
		got := violations([]listed{p})
		switch {
		case tt.want == "" && len(got) > 0:
			t.Errorf("%s importing %s%s: %q, want nothing", tt.dir, tt.imports, tt.deps, got)
		case tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)):
			t.Errorf("%s importing %s%s: %q, want one that says %q", tt.dir, tt.imports, tt.deps, got, tt.want)
		}
	}
}

// TestOnePackageDoc wants each package explained, in one place.
func TestOnePackageDoc(t *testing.T) {
	for _, p := range list(t) {
		var with []string
		files := slices.Concat(p.GoFiles, p.CgoFiles, p.Ignored)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if errors.Is(err, fs.ErrNotExist) {
				continue // gone since go list saw it
			} else if err != nil {
				t.Error(err)
			} else if f.Doc.Text() != "" {
				with = append(with, name)
				if p.Name != "main" && !strings.HasPrefix(f.Doc.Text(), "Package "+p.Name+" ") {
					t.Errorf("%s: the package doc in %s does not begin with %q", p.ImportPath, name, "Package "+p.Name)
				}
			}
		}
		if len(p.GoFiles)+len(p.CgoFiles) > 0 && len(with) != 1 {
			t.Errorf("%s has %d package doc comments %v, want exactly one: its tutorial", p.ImportPath, len(with), with)
		}
	}
}

// list asks go list for the module's packages. It needs no network (GOPROXY=off), and -e has it report what it
// can of a package that does not build at the moment.
func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e",
		"-json=ImportPath,Dir,Name,GoFiles,CgoFiles,IgnoredGoFiles,Imports,Deps,TestImports,XTestImports", "./...")
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=-mod=readonly")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var packages []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
	if len(packages) == 0 {
		t.Fatal("go list found no package")
	}
	return packages
}
