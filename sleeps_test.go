package extmesh_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoSleepingTests refuses time.Sleep in tests: a test waits for a condition, or sleeps in a synctest bubble,
// where it costs nothing. A sleep that is itself what is tested (a child that dribbles its answer) says so in a
// comment "// sleeps: why" on its line or the one above.
func TestNoSleepingTests(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules" || d.Name() != "." && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, line := range sleeps(t, path, src) {
			t.Errorf("%s:%d: time.Sleep in a test: wait for a condition, or use testing/synctest", path, line)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSleeps(t *testing.T) {
	const head = "package p\n\nimport (\n\t\"testing\"\n\t\"testing/synctest\"\n\t\"time\"\n)\n\n"
	for _, tt := range []struct {
		body string
		want int
	}{
		{"func f() { time.Sleep(1) }", 1},
		{"func f() { time.Sleep(1); synctest.Test(nil, func(*testing.T) { go func() { time.Sleep(1) }() }) }", 1},
		{"func f() { synctest.Test(nil, func(*testing.T) { time.Sleep(1) }) }", 0},
		{"func f(t *testing.T) { synctest.Test(t, g) }\n\nfunc g(*testing.T) { time.Sleep(1) }", 0},
		{"func f() {\n\t// sleeps: it is a slow child\n\ttime.Sleep(1)\n}", 0},
		{"func f() {\n\ttime.Sleep(1) // sleeps: it is a slow child\n}", 0},
		{"func f() {\n\ttime.Sleep(1) // for luck\n}", 1},
	} {
		if got := sleeps(t, "x_test.go", []byte(head+tt.body)); len(got) != tt.want {
			t.Errorf("%s: sleeps on lines %v, want %d", tt.body, got, tt.want)
		}
	}
}

// sleeps finds the lines of a test file that sleep outside a bubble. A bubble is a function handed to
// synctest.Test, in place or by its name; what such a function calls in turn is not followed.
func sleeps(t *testing.T, path string, src []byte) []int {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return nil
	}
	excused := map[int]bool{}
	for _, group := range f.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "// sleeps: ") {
				excused[fset.Position(c.Pos()).Line] = true
			}
		}
	}
	bubbles := map[string]bool{} // functions handed over by name
	ast.Inspect(f, func(n ast.Node) bool {
		if arg, ok := bubble(n); ok {
			if name, ok := arg.(*ast.Ident); ok {
				bubbles[name.Name] = true
			}
		}
		return true
	})
	var lines []int
	ast.Inspect(f, func(n ast.Node) bool {
		if fn, ok := n.(*ast.FuncDecl); ok && bubbles[fn.Name.Name] {
			return false
		}
		if _, ok := bubble(n); ok {
			return false
		}
		if call, ok := n.(*ast.CallExpr); ok && calls(call, "time", "Sleep") {
			if line := fset.Position(call.Pos()).Line; !excused[line] && !excused[line-1] {
				lines = append(lines, line)
			}
		}
		return true
	})
	return lines
}

// bubble returns the function that n hands to synctest.Test.
func bubble(n ast.Node) (ast.Expr, bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || !calls(call, "synctest", "Test") || len(call.Args) != 2 {
		return nil, false
	}
	return call.Args[1], true
}

func calls(call *ast.CallExpr, pkg, name string) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg
}
