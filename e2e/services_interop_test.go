//go:build interop

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// nodeDir returns a directory in which a program finds the npm packages of e2e/interop.
func nodeDir(t *testing.T) string {
	t.Helper()
	packages, err := filepath.Abs(filepath.Join("interop", "node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(packages, "nats")); err != nil {
		t.Fatalf("%v: run npm ci in e2e/interop first", err)
	}
	dir := t.TempDir()
	if err := os.Symlink(packages, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// words returns the command of the Node service in examples/services.
func words(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../examples/services/words/words.mjs")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(nodeDir(t), "words.mjs")
	write(t, file, string(text))
	return []string{"node", file}
}

// TestNodeServices tests the services in Go, shell and Node together.
func TestNodeServices(t *testing.T) {
	t.Parallel()
	all := services(t)
	all["words"] = words(t)
	testServices(t, all)
}

// TestNodeStopsWithoutLoss stops and starts the Node service under load.
func TestNodeStopsWithoutLoss(t *testing.T) {
	t.Parallel()
	url, _ := startNATS(t)
	start(t, []string{"NATS_URL=" + url}, program(t, "registry"))
	command := words(t)
	stopUnderLoad(t, url, 5, "ext_words_linger", []string{`{"ms":0}`, `{"ms":100}`}, func() *process {
		return start(t, nil, command[0], append(command[1:], "--nats-url", url)...)
	})
}

// TestNodeProtocol tests the Node service's protocol beyond calls and answers.
func TestNodeProtocol(t *testing.T) { testProtocol(t, "words", words(t)) }

// TestNodeAnswersInboxesOnly sends the Node service requests with reply subjects that are not inboxes.
func TestNodeAnswersInboxesOnly(t *testing.T) { answersInboxesOnly(t, "words", words(t)) }

// TestNodeCaller runs the Node caller of docs/calling-tools.md unchanged.
func TestNodeCaller(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/calling-tools.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, ok := strings.Cut(string(page), "```js call\n")
	script, _, end := strings.Cut(script, "```\n")
	if !ok || !end {
		t.Fatal("the page has no caller in Node")
	}
	url := up(t, "../examples/extensions/hello/..", "hello")
	file := filepath.Join(nodeDir(t), "call.mjs")
	write(t, file, script)
	p := start(t, []string{"NATS_URL=" + url}, "node", file)
	select {
	case <-p.done:
	case <-time.After(60 * time.Second):
		t.Fatal("it does not end")
	}
	for _, want := range []string{"ext_hello_greet: [ext:hello] ", "Hello, Ada!", "-32602 ran: ", "-32602 there is no tool"} {
		if p.err != nil || !strings.Contains(p.output(), want) {
			t.Errorf("it ended with %v and does not print %q", p.err, want)
		}
	}
}
