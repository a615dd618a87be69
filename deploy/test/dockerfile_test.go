package deploy_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// stages parses the Dockerfile.
func stages(t *testing.T) (byName map[string]instructions.Stage, args []instructions.ArgCommand) {
	t.Helper()
	ast, err := parser.Parse(strings.NewReader(read(t, "Dockerfile")))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range ast.Warnings {
		t.Errorf("Dockerfile: %s", w.Short)
	}
	list, args, err := instructions.Parse(ast.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	byName = map[string]instructions.Stage{}
	for _, s := range list {
		byName[s.Name] = s
	}
	return byName, args
}

// entrypoint returns the entry point of a target's image, and its default arguments.
func entrypoint(t *testing.T, target string) (program string, args []string) {
	t.Helper()
	all, _ := stages(t)
	s, ok := all[target]
	if !ok {
		t.Fatalf("the Dockerfile has no target %q", target)
	}
	for _, c := range s.Commands {
		switch c := c.(type) {
		case *instructions.EntrypointCommand:
			program = strings.TrimPrefix(c.CmdLine[0], "/")
		case *instructions.CmdCommand:
			args = c.CmdLine
		}
	}
	return program, args
}

func TestDockerfile(t *testing.T) {
	all, args := stages(t)
	for _, target := range []string{"registry", "stdio-bridge", "extctl", "primes"} {
		program, args := entrypoint(t, target)
		if program != target {
			t.Errorf("target %s runs %q", target, program)
		}
		process{name: target, program: target, args: args}.checkArgs(t)
		copies, certificates, user := false, false, false
		for _, c := range all[target].Commands {
			switch c := c.(type) {
			case *instructions.CopyCommand:
				certificates = certificates || c.From == "binaries" && slices.Equal(c.SourcePaths, []string{"/dist/ca-certificates.crt"}) && c.DestPath == "/etc/ssl/certs/"
				copies = c.From == "binaries" && slices.Equal(c.SourcePaths, []string{"/dist/" + target}) && c.DestPath == "/"+target
			case *instructions.UserCommand:
				user = c.User != "0" && c.User != "root"
			}
		}
		if !copies || !certificates || !user {
			t.Errorf("target %s: copies its binary: %v, and certificates: %v; is not root: %v", target, copies, certificates, user)
		}
		if base := all[target].BaseName; base != "scratch" && target != "stdio-bridge" {
			t.Errorf("target %s is from %s, not from scratch", target, base)
		}
	}
	defaults := map[string]string{}
	for _, a := range args {
		for _, kv := range a.Args {
			if kv.Value != nil {
				defaults[kv.Key] = *kv.Value
			}
		}
	}
	// BINARIES=local must not depend on an image that is pulled.
	if all["binaries"].BaseName != "$BINARIES" || defaults["BINARIES"] != "built" || all["local"].BaseName != "scratch" {
		t.Errorf("binaries are from %q, by default from %q; local is from %q", all["binaries"].BaseName, defaults["BINARIES"], all["local"].BaseName)
	}
	if all["stdio-bridge"].BaseName != "$BRIDGE_BASE" {
		t.Errorf("stdio-bridge is from %q", all["stdio-bridge"].BaseName)
	}
	_, version, _ := strings.Cut(read(t, "go.mod"), "\ngo ")
	version, _, _ = strings.Cut(version, "\n")
	if tag := strings.TrimPrefix(all["built"].BaseName, "golang:"); !strings.HasPrefix(version+".", tag+".") {
		t.Errorf("it builds with Go %s, go.mod wants %s", tag, version)
	}
}

// TestDockerBuild copies the files that .dockerignore does not exclude, and runs the commands of the Dockerfile there.
func TestDockerBuild(t *testing.T) {
	patterns, err := ignorefile.ReadAll(strings.NewReader(read(t, ".dockerignore")))
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := patternmatcher.New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	src := t.TempDir()
	files := 0
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name, relErr := filepath.Rel(root, path)
		if err != nil || relErr != nil || name == "." {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" || d.Name() == "node_modules" {
				return filepath.SkipDir
			}
			return nil
		}
		if skip, err := ignored.MatchesOrParentMatches(filepath.ToSlash(name)); err != nil || skip || !d.Type().IsRegular() {
			return err
		}
		files++
		if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "deploy") || strings.HasPrefix(name, "e2e") {
			t.Errorf("%s is sent to the builder", name)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(src, name)), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(src, name), text, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	ran := 0
	all, _ := stages(t)
	for _, c := range all["built"].Commands {
		c, ok := c.(*instructions.RunCommand)
		if !ok {
			continue
		}
		ran++
		if strings.Join(c.CmdLine, " ") == "cp /etc/ssl/certs/ca-certificates.crt /dist/" { // of the image's Debian
			continue
		}
		line := strings.Replace(strings.Join(c.CmdLine, " "), "-o /dist/", "-o "+out+"/", 1)
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", line)
		cmd.Dir = src
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOPROXY=off", "VERSION=7.8.9")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, text)
		}
	}
	if ran != 3 {
		t.Errorf("%d RUN commands, expected 3", ran)
	}
	t.Logf("built from %d files", files)
	for _, name := range []string{"registry", "stdio-bridge", "extctl", "primes"} {
		arg := "--version"
		if name == "extctl" {
			arg = "version"
		}
		text, err := exec.CommandContext(t.Context(), filepath.Join(out, name), arg).CombinedOutput()
		if err != nil || name != "primes" && !bytes.Contains(text, []byte("7.8.9")) {
			t.Errorf("%s %s: %s, %v", name, arg, text, err)
		}
	}
}
