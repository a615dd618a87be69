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

// layers is the architecture, from the lowest layer up (docs/decisions/0001-layers.md). A package may import its own
// layer and those below it. A path includes the packages below it.
var layers = []struct {
	name string
	dirs []string
}{
	{"pure", []string{"pkg/rpc", "pkg/manifest", "pkg/heartbeat", "internal/jsonrpc", "internal/liveness", "internal/supervise", "internal/instance",
		"internal/load", "internal/nearest", "internal/words", "internal/pause", "internal/terminal", "internal/plainyaml", "internal/document", "internal/plainjson", "internal/mcp", "internal/rawio", "internal/leaks", "internal/freeport", "internal/memlimit", "internal/launch", "internal/wire", "internal/calls", "internal/events"}},
	{"one host", []string{"internal/config", "internal/discovery", "internal/gate", "internal/clients", "internal/child",
		"internal/breaker", "internal/remote", "internal/scaffold", "internal/validate", "internal/sourcewatch", "internal/copytree"}},
	{"mesh", []string{"internal/natsconn", "internal/natstest", "internal/catalog", "internal/serve", "pkg/mesh", "internal/toolargs"}},
	{"fleet", []string{"internal/fleet"}},
	{"programs", []string{"internal/bridge", "internal/registry", "internal/natsd", "internal/daemon", "internal/door", "internal/localmesh", "internal/health", "internal/doctor"}},
	{"commands", []string{"cmd", "e2e", "bench"}},
}

// confined lists imports that only some packages may use directly. Tests may use them anywhere.
var confined = []struct {
	path string
	only []string // empty: tests only
	why  string
}{
	{"github.com/BurntSushi/toml", []string{"internal/document"},
		"internal/document adds the positions that the decoder does not have"},
	{"github.com/goccy/go-yaml", []string{"internal/document"},
		"internal/document limits what its parser is given, which would take minutes for hostile files"},
	{"github.com/failsafe-go/failsafe-go", []string{"internal/breaker"},
		"its half-open state jams or closes wrongly without the tokens that internal/breaker adds"},
	{"github.com/nats-io/nats-server", []string{"internal/natsd", "internal/natstest", "bench"},
		"only natsd locks the store of the embedded server"},
	{"github.com/nats-io/nats.go", []string{"internal/natsconn", "internal/natstest", "internal/catalog", "internal/serve", "pkg/mesh", "internal/bridge", "internal/registry", "internal/natsd",
		"internal/daemon", "internal/localmesh", "internal/doctor", "cmd", "e2e", "bench", "examples/services"},
		"packages below pkg/mesh are tested without a server and do not depend on NATS"},
	{"github.com/santhosh-tekuri/jsonschema", []string{"pkg/mesh/schema"},
		"the limits on third-party schemas are in one package"},
	{"github.com/spf13", []string{"cmd"},
		"only commands parse flags; other packages have a configuration struct"},
	{"go.uber.org/goleak", []string{"internal/leaks"}, "it is for tests only"},
	{module + "internal/leaks", nil, "it is for tests only"},
	{module + "internal/natstest", nil, "it is a test's tool"},
	{module + "internal/freeport", []string{"internal/natstest"}, "it is for tests only"},
	{"github.com/rogpeppe/go-internal", nil, "it is for tests only"},
	{"golang.org/x/tools/txtar", nil, "it is for tests only"},
}

// unreached lists packages that must not be imported even indirectly, because they would be linked into the binary.
var unreached = []struct {
	path string
	from []string
	why  string
}{
	{"github.com/nats-io/nats.go", []string{"pkg/rpc", "pkg/manifest", "pkg/heartbeat", "internal/wire", "internal/jsonrpc",
		"internal/liveness", "internal/supervise", "internal/config", "internal/discovery", "internal/gate", "internal/clients", "internal/child", "internal/breaker",
		"internal/remote"}, "no NATS below pkg/mesh"},
	{"github.com/nats-io/nats.go", []string{"internal/fleet"}, "the registry's decisions do no I/O"},
	{"net", []string{"internal/fleet"}, "the registry's decisions do no I/O"},
	{"github.com/nats-io/nats-server", []string{"pkg", "internal/bridge", "internal/registry", "cmd/registry",
		"cmd/stdio-bridge"}, "only extctl contains a server; the other binaries would grow without starting one"},
	{"github.com/santhosh-tekuri/jsonschema", []string{"internal/bridge", "internal/registry", "cmd/registry", "cmd/stdio-bridge"},
		"it compiles the schemas of all drafts at program start, which doubles the start time; only callers need it"},
	{"os/exec", []string{"pkg/rpc", "pkg/heartbeat", "internal/jsonrpc", "internal/liveness", "internal/supervise"},
		"pure packages are tested in a synctest bubble, where processes do not follow the virtual time"},
	{"net", []string{"pkg/heartbeat", "internal/liveness", "internal/supervise"},
		"the results of pure packages depend only on arguments and the time"},
}

// listed is the output of go list for a package.
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

// violations checks packages against the tables above.
func violations(packages []listed) []string {
	var out []string
	report := func(p, imported, format string, args ...any) {
		out = append(out, fmt.Sprintf("%s imports %s: %s", p, imported, fmt.Sprintf(format, args...)))
	}
	for _, p := range packages {
		here := strings.TrimPrefix(p.ImportPath, module)
		if len(p.GoFiles)+len(p.CgoFiles) == 0 {
			continue // no code yet, or tests only
		}
		example := under(here, "examples")
		rank := rankOf(here)
		if rank < 0 && !example {
			out = append(out, here+" is in no layer: add it to layers in layers_test.go")
		}
		for _, imported := range p.Imports {
			there, ours := strings.CutPrefix(imported, module)
			switch {
			case ours && example && !under(there, "pkg"):
				report(here, there, "an example may use only packages that its readers can import, those in pkg/")
			case ours && !example && rank >= 0 && rankOf(there) > rank:
				report(here, there, "layer %q is above layer %q; imports must point down", layers[rankOf(there)].name, layers[rank].name)
			}
			for _, c := range confined {
				if under(imported, c.path) && !anyUnder(here, c.only) {
					report(here, imported, "%s", c.why)
				}
			}
		}
		for _, u := range unreached {
			if anyUnder(here, u.from) && slices.ContainsFunc(p.Deps, func(d string) bool { return reaches(d, u.path) }) {
				report(here, u.path, "indirectly: %s", u.why)
			}
		}
		// The bridge and the registry communicate only over NATS, also in their tests: tests of both are in e2e.
		for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			there := strings.TrimPrefix(imported, module)
			if under(here, "internal/bridge") && under(there, "internal/registry") ||
				under(here, "internal/registry") && under(there, "internal/bridge") {
				report(here, there, "bridge and registry communicate only over NATS; each is deployed without the other")
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

// reaches is like under, but a path in the standard library does not include those below it: net is not net/url.
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

// TestViolations checks that each table reports violations.
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
		{dir: "pkg/rpc", imports: module + "pkg/mesh", want: `"mesh" is above layer "pure"`},
		{dir: "pkg/mesh", imports: module + "internal/bridge", want: `"programs" is above layer "mesh"`},
		{dir: "internal/bridge", imports: module + "cmd/extctl", want: `"commands" is above layer "programs"`},
		{dir: "internal/bridge/sub", imports: module + "internal/registry", want: "only over NATS"},
		{dir: "internal/registry", imports: module + "internal/bridge", want: "only over NATS"},
		{dir: "internal/util", imports: "fmt", want: "in no layer"},
		{dir: "examples/extensions/clock", imports: module + "internal/child", want: "its readers can import"},
		{dir: "internal/config", imports: "github.com/BurntSushi/toml", want: "internal/document adds the positions"},
		{dir: "internal/gate", imports: "github.com/goccy/go-yaml/ast", want: "hostile files"},
		{dir: "pkg/mesh", imports: "github.com/failsafe-go/failsafe-go/circuitbreaker", want: "half-open"},
		{dir: "cmd/extctl", imports: "github.com/nats-io/nats-server/v2/server", want: "only natsd"},
		{dir: "internal/child", imports: "github.com/nats-io/nats.go/micro", want: "without a server"},
		{dir: "internal/bridge", imports: "github.com/spf13/cobra", want: "only commands parse flags"},
		{dir: "internal/child", imports: "go.uber.org/goleak", want: "for tests only"},
		{dir: "internal/child", deps: "github.com/nats-io/nats.go", want: "no NATS below"},
		{dir: "cmd/registry", deps: "github.com/nats-io/nats-server/v2/server", want: "only extctl"},
		{dir: "internal/supervise", deps: "os/exec", want: "bubble"},
		{dir: "pkg/heartbeat", deps: "net", want: "depend only on arguments"},
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
			t.Errorf("%s importing %s%s: %q, want one with %q", tt.dir, tt.imports, tt.deps, got, tt.want)
		}
	}
}

// TestOnePackageDoc checks that each package has one package comment.
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
				continue // removed since go list ran
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
			t.Errorf("%s has %d package doc comments %v, want exactly one", p.ImportPath, len(with), with)
		}
	}
}

// list returns go list's output for the module's packages. It needs no network (GOPROXY=off); with -e it also reports
// packages that do not build at the moment.
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
