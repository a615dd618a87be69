package door

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/extmesh/extmesh/internal/natstest"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// TestSkills checks what SEP-2640 demands: the entry of a skill has the digest, the size and the front matter of the
// SKILL.md that is read, and the name in it is the last directory of the URI.
func TestSkills(t *testing.T) {
	b := newBed(t)
	b.newLister("one", "", `{"uri":"skill://plain/SKILL.md","name":"another"},`+resourceA, `{"uriTemplate":"skill://{x}/SKILL.md","name":"t"}`)
	d := b.listed(Options{View: ViewOptions{Exclude: []string{"skill:secret*"}}})
	p := d.pipe(t)
	p.list("resources/list", "resources", "uri")
	for dir, s := range map[string]mesh.Skill{
		"plain":      {Name: "Any label", Description: "Says: \"hi\"\n# \u0085 \\ 'x'", Body: "Do it.\n---\nmore"},
		"a_b-_c_":    {Body: "x"},
		"secret_one": {Description: "x", Body: "x"},
		"true":       {Description: strings.Repeat("ä", 3000), Body: ""},
	} {
		b.put("skill."+dir, s)
	}
	natstest.Eventually(t, "the skills are there", func() bool { return len(d.view.now.Load().skills.keys) == 3 })
	if got := p.next(); got != `{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}` {
		t.Error(got)
	}
	answer := func(request string) string { // the skills may be shown in two steps, with a notification of the second a second later
		p.send(request)
		for {
			if line := p.next(); !strings.Contains(line, "list_changed") {
				return line
			}
		}
	}
	ask := func(method, params string) string {
		return answer(`{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + modernMeta + params + `}}`)
	}
	var list struct {
		Result struct {
			TTL    *int   `json:"ttlMs"`
			Scope  string `json:"cacheScope"`
			Skills []struct {
				URI         string         `json:"uri"`
				Frontmatter map[string]any `json:"frontmatter"`
				Resources   []struct {
					URI    string `json:"uri"`
					Digest string `json:"digest"`
					Size   int    `json:"size"`
				} `json:"resources"`
			} `json:"skills"`
		} `json:"result"`
	}
	text := ask("skills/list", "")
	if err := json.Unmarshal([]byte(text), &list); err != nil || list.Result.TTL == nil || list.Result.Scope != "public" {
		t.Fatalf("%v: %s", err, text)
	}
	var uris []string
	for _, s := range list.Result.Skills {
		uris = append(uris, s.URI)
		var read struct {
			Result struct {
				Contents []struct{ URI, Text string }
			}
		}
		if err := json.Unmarshal([]byte(ask("resources/read", `,"uri":"`+s.URI+`"`)), &read); err != nil || len(read.Result.Contents) != 1 || len(s.Resources) != 1 {
			t.Fatalf("%s: %v, %+v", s.URI, err, read)
		}
		file := read.Result.Contents[0].Text
		sum := sha256.Sum256([]byte(file))
		if r := s.Resources[0]; r.URI != s.URI || r.Size != len(file) || r.Digest != "sha256:"+hex.EncodeToString(sum[:]) {
			t.Errorf("%s: %+v is not that of the file", s.URI, r)
		}
		front, body, _ := strings.Cut(strings.TrimPrefix(file, "---\n"), "\n---\n\n")
		var have map[string]any
		if err := yaml.Unmarshal([]byte(front), &have); err != nil || fmt.Sprint(have) != fmt.Sprint(s.Frontmatter) {
			t.Errorf("%s: %v: the front matter is %q, and the entry has %q", s.URI, err, have, s.Frontmatter)
		}
		if name := s.Frontmatter["name"].(string); !strings.HasSuffix(s.URI, "/"+name+"/SKILL.md") {
			t.Errorf("%s has the name %s", s.URI, name)
		}
		if s.URI == "skill://plain/SKILL.md" && body != "Do it.\n---\nmore" {
			t.Errorf("the body is %q", body)
		}
		if got := ask("skills/get", `,"uri":"`+s.URI+`"`); !strings.Contains(got, `"skill":{"uri":"`+s.URI+`"`) {
			t.Error(got)
		}
	}
	if got := strings.Join(uris, " "); got != "skill://a_b-_c_/a-b-c/SKILL.md skill://plain/SKILL.md skill://true/SKILL.md" {
		t.Errorf("the list is %s", got)
	}
	for _, uri := range []string{"skill://secret_one/secret-one/SKILL.md", "file:///a/b", "mesh://one/skill:%2F%2Fplain%2FSKILL.md"} {
		if got := ask("skills/get", `,"uri":"`+uri+`"`); !strings.Contains(got, `"code":-32602`) {
			t.Error(got)
		}
	}
	if got := ask("resources/read", `,"uri":"mesh://one/skill:%2F%2Fplain%2FSKILL.md"`); !strings.Contains(got, `"of":"one"`) {
		t.Errorf("the resource of an extension with the URI of a skill: %s", got)
	}
	if got := answer(`{"jsonrpc":"2.0","id":1,"method":"skills/list"}`); got != `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found: skills/list"}}` {
		t.Error(got)
	}
}
