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

// TestNoSleepingTests reports time.Sleep in tests: a test waits for a condition, or sleeps in a synctest bubble,
// where it takes no time. Exceptions are the pauses of a for loop that polls, the code of the test binary as a child
// (modes_test.go), and a sleep with a comment on its line or the one above.
func TestNoSleepingTests(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules" || d.Name() != "." && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go") || d.Name() == "modes_test.go":
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, line := range sleeps(t, path, src) {
			t.Errorf("%s:%d: time.Sleep in a test: wait for a condition, use testing/synctest, or give the reason in a comment", path, line)
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
		{"func in(f func(*testing.T)) { synctest.Test(nil, f) }\n\nfunc g() { in(func(*testing.T) { time.Sleep(1) }); time.Sleep(1) }", 1},
		{"func f() { for !ok() { time.Sleep(1) } }", 0},
		{"func f() { for ; !ok(); time.Sleep(1) {} }", 0},
		{"func f() { for range 10 { time.Sleep(1) } }", 1},
		{"func f() { for { go func() { time.Sleep(1) }() } }", 1},
		{"func f() {\n\t// a slow child\n\ttime.Sleep(1)\n}", 0},
		{"func f() {\n\ttime.Sleep(1) // a slow child\n}", 0},
		{"func f() {\n\n\ttime.Sleep(1)\n}", 1},
	} {
		if got := sleeps(t, "x_test.go", []byte(head+tt.body)); len(got) != tt.want {
			t.Errorf("%s: sleeps on lines %v, want %d", tt.body, got, tt.want)
		}
	}
}

// sleeps returns the lines of a test file with an unexplained sleep. A bubble is a function literal or named function
// that is passed to synctest.Test; functions that it calls are not followed.
func sleeps(t *testing.T, path string, src []byte) []int {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return nil
	}
	commented := map[int]bool{}
	for _, group := range f.Comments {
		commented[fset.Position(group.End()).Line] = true
	}
	makers := bubbleMakers(f)
	bubbles := map[string]bool{} // functions passed by name
	ast.Inspect(f, func(n ast.Node) bool {
		if arg, ok := bubble(n, makers); ok {
			if name, ok := arg.(*ast.Ident); ok {
				bubbles[name.Name] = true
			}
		}
		return true
	})
	var lines []int
	var visit func(n ast.Node, polling bool)
	visit = func(n ast.Node, polling bool) {
		ast.Inspect(n, func(m ast.Node) bool {
			switch x := m.(type) {
			case *ast.FuncDecl:
				return !bubbles[x.Name.Name]
			case *ast.ForStmt:
				if m != n {
					visit(x, true)
					return false
				}
			case *ast.FuncLit:
				if m != n { // code started in a loop is not the loop's pause
					visit(x, false)
					return false
				}
			case *ast.CallExpr:
				if _, ok := bubble(x, makers); ok {
					return false
				}
				if line := fset.Position(x.Pos()).Line; !polling && calls(x, "time", "Sleep") && !commented[line] && !commented[line-1] {
					lines = append(lines, line)
				}
			}
			return true
		})
	}
	visit(f, false)
	return lines
}

// bubbleMakers returns the file's own functions that call synctest.Test: functions passed to them run in a bubble.
func bubbleMakers(f *ast.File) map[string]bool {
	makers := map[string]bool{}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil || strings.HasPrefix(fn.Name.Name, "Test") {
			continue
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && calls(call, "synctest", "Test") {
				makers[fn.Name.Name] = true
			}
			return true
		})
	}
	return makers
}

// bubble returns the function that n passes to synctest.Test, or to one of makers.
func bubble(n ast.Node, makers map[string]bool) (ast.Expr, bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return nil, false
	}
	if name, ok := call.Fun.(*ast.Ident); ok && makers[name.Name] || calls(call, "synctest", "Test") {
		return call.Args[len(call.Args)-1], true
	}
	return nil, false
}

func calls(call *ast.CallExpr, pkg, name string) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == pkg
}
