package e2e

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestReadme runs the shell blocks of the README unchanged, in a directory with the files that they need. The programs
// are already built, so the commands that build them are replaced or skipped.
func TestReadme(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string]string{}
	for _, m := range regexp.MustCompile("(?ms)^```sh (\\w+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		blocks[m[1]] = m[2]
	}
	if kinds := slices.Sorted(maps.Keys(blocks)); !slices.Equal(kinds, []string{"apart", "call", "dice", "nats", "new", "up", "use"}) {
		t.Fatalf("README has the blocks %v", kinds)
	}
	r := newReader(t)
	for _, e := range []string{"hello", "textkit"} { // the others need Node or a build
		if err := os.CopyFS(filepath.Join(r.dir, "examples/extensions", e), os.DirFS(filepath.Join("../examples/extensions", e))); err != nil {
			t.Fatal(err)
		}
	}
	up := r.start(t, strings.Replace(blocks["up"], "go run -v ./cmd/extctl", "extctl", 1))
	up.waitFor(t, "    extctl call ext_hello_greet name=Ada\n\nCtrl-C stops everything.\n")

	t.Run("use", func(t *testing.T) { r.use(t, blocks["use"]) })
	t.Run("nats", func(t *testing.T) { r.nats(t, blocks["nats"]) })
	t.Run("new", func(t *testing.T) {
		if _, err := exec.LookPath("python3"); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
		for line := range strings.Lines(blocks["new"]) {
			r.run(t, line)
		}
		shown := regexp.MustCompile("(?ms)^```python\n(.*?)^```$").FindStringSubmatch(string(page))
		if made, err := os.ReadFile(filepath.Join(r.dir, "dice", "main.py")); err != nil || shown == nil || !strings.Contains(string(made), shown[1]) {
			t.Errorf("%v: README shows another program than extctl new makes:\n%s", err, made)
		}
		joined := r.start(t, blocks["dice"])
		joined.waitFor(t, "    extctl call ext_dice_greet ")
		if out := r.run(t, blocks["call"]); !strings.Contains(out, "Ada") {
			t.Errorf("%s: %s", blocks["call"], out)
		}
		joined.stop(t, 6*time.Second)
	})
	up.stop(t, 6*time.Second)
	t.Run("apart", func(t *testing.T) { r.apart(t, blocks["apart"]) })
}

// reader runs commands the way a reader of the README types them.
type reader struct {
	dir string // the current directory
	env []string
}

func newReader(t *testing.T) *reader {
	dir, home := t.TempDir(), t.TempDir()
	return &reader{dir, []string{
		"PATH=" + filepath.Dir(program(t, "extctl")) + ":" + os.Getenv("PATH"), "HOME=" + home, "NATS_URL=",
		"XDG_DATA_HOME=" + home, "XDG_STATE_HOME=" + home, "XDG_CONFIG_HOME=" + home,
	}}
}

// start starts a command line.
func (r *reader) start(t *testing.T, line string) *process {
	t.Helper()
	return start(t, r.env, "sh", "-c", "cd '"+r.dir+"' && exec "+line)
}

// run runs a command line, which must succeed, and returns its output.
func (r *reader) run(t *testing.T, line string) string {
	t.Helper()
	p := r.start(t, line)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s does not end", line)
	}
	if p.err != nil {
		t.Errorf("%s: %v", line, p.err)
	}
	return p.output()
}

func (r *reader) use(t *testing.T, block string) {
	for line := range strings.Lines(block) {
		switch line = strings.TrimSpace(line); {
		case line == "go install ./cmd/extctl":
		case line == "extctl watch":
			p := r.start(t, line)
			p.waitFor(t, "watching")
			p.cmd.Process.Signal(syscall.SIGINT)
			<-p.done
		case strings.HasPrefix(line, "extctl call"):
			if out := r.run(t, line); out != `{"greeting":"Hello, Ada!"}`+"\n" {
				t.Errorf("%s: %s", line, out)
			}
		default:
			if out := r.run(t, line); !strings.Contains(out, "hello") {
				t.Errorf("%s: %s", line, out)
			}
		}
	}
}

// nats replaces the nats command: it parses the lines with a shell and sends the requests that the command would send.
func (r *reader) nats(t *testing.T, block string) {
	export, block, _ := strings.Cut(block, "\n")
	nc := connect(t, strings.TrimSpace(r.run(t, "sh -c '"+export+" && echo $NATS_URL'")))
	for line := range strings.Lines(block) {
		words, err := exec.Command("sh", "-c", `nats() { printf '%s\n' "$@"; }; `+line).Output()
		args := strings.Split(string(words), "\n")
		if err != nil || len(args) < 4 {
			t.Fatalf("%s: %v, %q", line, err, words)
		}
		subject, payload, want := args[1], args[2], `"result":{"greeting":"Hello, Ada!"}`
		if args[0] == "kv" {
			subject, payload, want = "$JS.API.DIRECT.GET.KV_"+args[2]+".$KV."+args[2]+"."+args[3], "", `"state":"ready"`
		}
		m, err := nc.Request(subject, []byte(payload), 20*time.Second)
		if err != nil || !strings.Contains(string(m.Data), want) || !json.Valid(m.Data) {
			t.Errorf("%s: %v, %s", line, err, m.Data)
		}
	}
}

// apart starts the programs as separate processes, and repeats the last command until the extension is ready.
func (r *reader) apart(t *testing.T, block string) {
	if err := os.CopyFS(filepath.Join(r.dir, "extensions/hello"), os.DirFS("../examples/extensions/hello")); err != nil {
		t.Fatal(err)
	}
	url, _ := startNATS(t)
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(block, "nats://nats:4222", url)), "\n")
	var daemons []*process
	for _, line := range lines[:len(lines)-1] {
		daemons = append(daemons, r.start(t, line))
	}
	list := lines[len(lines)-1]
	eventually(t, time.Minute, list, func() bool {
		p := r.start(t, list)
		<-p.done
		return p.err == nil && regexp.MustCompile(`(?m)^hello .* ready `).MatchString(p.output())
	})
	for _, d := range slices.Backward(daemons) {
		d.stop(t, 10*time.Second)
		if out := d.output(); !strings.Contains(out, " has stopped") {
			t.Errorf("its log lacks the message that it has stopped:\n%s", out)
		}
	}
}
