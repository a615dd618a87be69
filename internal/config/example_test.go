package config_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/extmesh/extmesh/internal/config"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// A program parses the file once, reports all faults, and gets the settings of each extension.
func ExampleParse() {
	c, diags := config.Parse("extensions.yaml", []byte(`
extensions:
  supervision: {call_timeout: 1m}
  entries:
    transcriber: {call_timeout: 10m, replicas: 2, gating: warn}
`))
	if manifest.HasErrors(diags) {
		return
	}
	for _, id := range []string{"weather", "transcriber"} {
		s := c.SupervisionFor(id)
		fmt.Println(id, s.CallTimeout, s.HangTimeout, s.Replicas, c.GatingFor(id))
	}
	// The manifest requests a minute, and the configuration does not override it.
	fmt.Println(c.StartLimit("weather", manifest.Transport{Type: manifest.Stdio, HandshakeTimeout: time.Minute}).Max)
	// Output:
	// weather 1m0s 1m0s 1 skip
	// transcriber 10m0s 10m0s 2 warn
	// 1m0s
}

func ExampleParse_faults() {
	_, diags := config.Parse("extensions.yaml", []byte(`extensions:
  max_depth: deep
  watch: {debounce: 500ms}
  supervision:
    call_timeout: 30
    max_line: 64MiB
`))
	for _, d := range diags {
		fmt.Println(d)
	}
	// Output:
	// extensions.yaml:2:14: error: extensions.max_depth: is a string; want a whole number
	// extensions.yaml:3:11: error: extensions.watch.debounce: unknown key; did you mean debounce_ms?
	// extensions.yaml:5:19: error: extensions.supervision.call_timeout: 30 has no unit; want a duration such as 30s, 30ms or 1m30s
}

// An edit changes one list and keeps the comments.
func ExampleSetDisabled() {
	dir, err := os.MkdirTemp("", "config")
	if err != nil {
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "extensions.yaml")
	text := `extensions:
  disabled: # off for the audit
    - slack # until May
  gating: warn
`
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return
	}
	changed, err := config.SetDisabled(context.Background(), path, "weather", true)
	fmt.Println(changed, err)
	data, _ := os.ReadFile(path)
	fmt.Print(string(data))
	// Output:
	// true <nil>
	// extensions:
	//   disabled: # off for the audit
	//     - slack # until May
	//     - weather
	//   gating: warn
}
