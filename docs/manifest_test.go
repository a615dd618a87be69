package docs_test

import (
	"encoding/json"
	"regexp"
	"testing"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// TestManifestPage compares docs/manifest.md with the schema: every key has one row, and every row is a key.
func TestManifestPage(t *testing.T) {
	var root any
	if err := json.Unmarshal(manifest.Schema(), &root); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	schemaKeys("", root, want)
	if len(want) < 30 {
		t.Fatalf("the schema has the keys %v", want)
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_.<>]+)` \\| ").FindAllStringSubmatch(read(t, "manifest.md"), -1) {
		if !want[m[1]] {
			t.Errorf("%s is not in the schema, or has two rows", m[1])
		}
		delete(want, m[1])
	}
	for key := range want {
		t.Errorf("%s has no row", key)
	}
}

// schemaKeys adds the keys below a schema.
func schemaKeys(path string, schema any, keys map[string]bool) {
	s, _ := schema.(map[string]any)
	properties, _ := s["properties"].(map[string]any)
	for name, of := range properties {
		keys[path+name] = true
		schemaKeys(path+name+".", of, keys)
	}
	if more, ok := s["additionalProperties"].(map[string]any); ok {
		schemaKeys(path+"<name>.", more, keys)
	}
}
