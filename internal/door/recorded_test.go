package door

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"golang.org/x/tools/txtar"
)

// TestRecordedClients sends the first messages of real clients, byte for byte, and compares the answers with those in
// testdata/clients. The comment of each file says where the client's messages (>) are from; -update writes the answers (<).
func TestRecordedClients(t *testing.T) {
	b := newBed(t)
	b.ready("probe", "mcp", tool("probe", "probe_echo"))
	b.serve("probe", func(_ *nats.Msg, _ string, params json.RawMessage) (string, error) {
		return `{"content":[],"echo":` + string(params) + `}`, nil
	})
	d := b.door(Options{Version: "1.2.3", View: ViewOptions{Names: NamesOwn}})
	paths, err := filepath.Glob("testdata/clients/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { replay(t, d, path) })
	}
}

func replay(t *testing.T, d *Door, path string) {
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p := d.pipe(t)
	var out bytes.Buffer
	for line := range strings.Lines(string(a.Files[0].Data)) {
		sent, ok := strings.CutPrefix(line, "> ")
		if !ok {
			continue
		}
		out.WriteString(line)
		p.send(strings.TrimSuffix(sent, "\n"))
		if strings.Contains(sent, `"id":`) {
			out.WriteString("< " + p.next() + "\n")
		}
	}
	if *update {
		a.Files[0].Data = slices.Clone(out.Bytes())
		if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(out.Bytes(), a.Files[0].Data) {
		t.Errorf("%s differs; go test -update writes it:\n%s", path, out.Bytes())
	}
}
