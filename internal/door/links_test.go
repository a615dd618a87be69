package door

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// TestLinks follows links in the results of tools and prompts to resources that no server lists.
func TestLinks(t *testing.T) {
	b := newBed(t)
	for _, id := range []string{"a", "b", "c"} {
		capabilities := `{"resources":{},"prompts":{}}`
		if id == "c" {
			capabilities = `{}` // it has no resources, so its links lead nowhere
		}
		b.put("spec."+id, mesh.Spec{ID: id, Version: "1.0.0", Transport: "stdio", Dialect: "mcp", Subject: "ext." + id + ".rpc", Features: []string{"stream"},
			Tools: []mesh.Tool{tool(id, "link")}, Server: &wire.Server{Capabilities: json.RawMessage(capabilities)}})
		b.state(id, heartbeat.Ready, "")
		b.serve(id, func(_ *nats.Msg, method string, params json.RawMessage) (string, error) {
			var p struct {
				URI       string
				Arguments struct{ URI string }
			}
			if err := json.Unmarshal(params, &p); err != nil {
				return "", err
			}
			if method == "resources/read" {
				return fmt.Sprintf(`{"contents":[{"uri":%q,"text":%q}]}`, p.URI, "of "+id), nil
			}
			return fmt.Sprintf(`{"content":[{"type":"text","text":"see"},{"type":"resource_link","uri":%q,"name":"n"}]}`, p.Arguments.URI), nil
		})
	}
	p := b.listed(Options{View: ViewOptions{Exclude: []string{"b/resource:x://hidden"}}}).pipe(t)
	link := func(id, uri string) {
		t.Helper()
		got := p.ask(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ext_%s_link","arguments":{"uri":%q}}}`, id, uri))
		if !strings.Contains(got, `"resource_link","uri":"`+uri+`"`) {
			t.Fatal(got)
		}
	}
	reads := func(uri, of string) {
		t.Helper()
		got := p.ask(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":%q}}`, uri))
		if !strings.Contains(got, of) {
			t.Errorf("%s: %s", uri, got)
		}
	}
	const notFound = `"code":-32002`
	reads("x://one", notFound)
	link("b", "x://one")
	reads("x://one", `"text":"of b"`)
	link("a", "x://one")
	reads("x://one", `"text":"of a"`) // of two, the one with the lower id, as in the lists
	link("c", "x://two")
	reads("x://two", notFound)
	link("b", "x://hidden")
	reads("x://hidden", notFound)
	for n := range maxLinks {
		link("b", fmt.Sprint("x://many/", n))
	}
	reads("x://many/0", `"text":"of b"`)
	link("b", "x://more")
	reads("x://many/0", notFound)
	reads("x://many/1", `"text":"of b"`)
	reads("x://one", `"text":"of a"`) // another extension's links are not forgotten
}

func TestLinksIn(t *testing.T) {
	for text, want := range map[string][]string{
		`{"content":[{"type":"resource_link","uri":"a:b"},{"type":"resource","resource":{"uri":"c:d","text":"e"}},{"type":"text","text":"resource"}]}`: {"a:b", "c:d"},
		`{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"a:b"}}}]}`:                                                        {"a:b"},
		`{"content":[7,{"type":"resource_link","uri":7},{"type":"resource_link","uri":"a:b"}]}`:                                                        {"a:b"},
		`{"content":"resource"}`:                                     nil,
		`{"content":[{"type":"text","text":"\"resource_link\""}]}`:   nil,
		`{"structuredContent":{"type":"resource_link","uri":"a:b"}}`: nil,
		`["resource_link"`:                                           nil,
	} {
		if got := linksIn([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("%s: %q", text, got)
		}
	}
}
