package manifest

import (
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/document"
)

// MaxFile is the maximum size in bytes of a manifest, a sidecar or a skill.
const MaxFile = document.MaxFile

// table reads one table of a manifest, a sidecar or a front matter.
type table struct {
	*document.Table
	program func(command, cwd string) string // Options.Program
}

// table returns the table at key; an absent one reads as empty.
func (t *table) table(key string) *table { return &table{t.Sub(key), t.program} }

// text returns a string of at most limit characters, for people to read.
func (t *table) text(key string, limit int) string {
	s, _ := t.Str(key)
	if n := utf8.RuneCountInString(s); n > limit {
		t.Fault(t.Key(key), "has %d characters; want at most %d", n, limit)
	}
	return s
}

// placeholders checks the syntax of the placeholders in the value at key.
func (t *table) placeholders(key, value string) bool {
	_, err := split(value)
	if err != nil {
		t.Fault(key, "%v", err)
	}
	return err == nil
}
