package mesh

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/wire"
)

// twos is a ClientOptions.Schemas that detects one fault.
func twos(json.RawMessage) (func(json.RawMessage) error, error) {
	return func(args json.RawMessage) error {
		if bytes.Contains(args, []byte(`"two"`)) {
			return errors.New("/n: got string, want number")
		}
		return nil
	}, nil
}

// TestCheckOf: a schema is compiled when its tool is first called, and again when the extension has another spec; one that
// cannot be leaves the arguments unchecked, with a word in the log.
func TestCheckOf(t *testing.T) {
	var log bytes.Buffer
	var compiled []string
	c := NewClient(nil, ClientOptions{
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Schemas: func(text json.RawMessage) (func(json.RawMessage) error, error) {
			compiled = append(compiled, string(text))
			if string(text) == "broken" {
				return nil, errors.New("it is broken")
			}
			return twos(text)
		},
	})
	spec := &wire.Spec{ID: "a"}
	one, two := &wire.Tool{Name: "ext_a_one", Own: "one", InputSchema: json.RawMessage("1")}, &wire.Tool{Name: "ext_a_two", Own: "two", InputSchema: json.RawMessage("broken")}
	for range 3 {
		if f := c.checkOf(spec, one); f == nil || f(json.RawMessage(`{"n":"two"}`)) == nil || f(json.RawMessage(`{}`)) != nil {
			t.Error("the arguments are not checked")
		}
		if c.checkOf(spec, two) != nil {
			t.Error("something is checked without a schema")
		}
	}
	c.checkOf(&wire.Spec{ID: "a"}, one)
	c.checkOf(&wire.Spec{ID: "b"}, one)
	if got := strings.Join(compiled, " "); got != "1 broken 1 1" {
		t.Errorf("compiled: %s", got)
	}
	if n := strings.Count(log.String(), "arguments are not checked"); n != 1 || !strings.Contains(log.String(), "tool=ext_a_two") {
		t.Errorf("the log: %s", &log)
	}
	if NewClient(nil, ClientOptions{}).checkOf(spec, one) != nil {
		t.Error("without Schemas something is checked")
	}
}
