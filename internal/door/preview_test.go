package door

import (
	"encoding/json"
	"testing"

	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// TestPreview compares a preview with what a client of the same view gets, and checks that lists which cannot be read are named.
func TestPreview(t *testing.T) {
	b := newBed(t)
	b.newLister("one", promptA, resourceA, templateA)
	b.newLister("two", promptA, resourceA, "")
	b.newLister("secret", promptA, "", "")
	b.newLister("broken", promptA, "", "").set("prompts/list", `{"prompts":7}`)
	b.newLister("lost", promptA, "", "")
	b.state("lost", heartbeat.Lost, "")
	b.ready("tools", "ext", tool("tools", "read"))
	b.put("skill.trim_video", mesh.Skill{Description: "Trims.", Body: "x"})
	o := ViewOptions{Exclude: []string{"secret"}}

	catalog, err := mesh.LoadCatalog(t.Context(), b.nc, mesh.CatalogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := NewPreview(t.Context(), o, catalog, mesh.NewClient(b.nc, mesh.ClientOptions{Catalog: catalog, WaitReady: -1}))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"searching":false,"tools":[{"name":"ext_tools_read","extension":"tools","tool":"read","bytes":90}],` +
		`"prompts":[{"name":"ext_one_ask","extension":"one","prompt":"ask"},{"name":"ext_two_ask","extension":"two","prompt":"ask"}],` +
		`"resources":[{"uri":"file:///a/b","extension":"one"},{"uri":"mesh://two/file:%2F%2F%2Fa%2Fb","extension":"two","own":"file:///a/b"},` +
		`{"uri":"skill://trim_video/trim-video/SKILL.md","skill":"trim_video"}],"templates":[{"uri":"file:///a/{name}","extension":"one"}],"hidden":[],` +
		`"unread":[{"extension":"broken","list":"prompts","reason":"the result of prompts/list has no list prompts of at most 4194304 bytes"},` +
		`{"extension":"lost","list":"prompts","reason":"the extension is lost"},{"extension":"lost","list":"resources","reason":"the extension is lost"},` +
		`{"extension":"lost","list":"resourceTemplates","reason":"the extension is lost"}],"bytes":101}`
	if string(text) != want {
		t.Errorf("the preview is\n%s, want\n%s", text, want)
	}

	p := b.listed(Options{View: o}).pipe(t)
	for method, of := range map[string][3]string{
		"prompts/list":             {"prompts", "name", "ext_one_ask ext_two_ask"},
		"resources/list":           {"resources", "uri", "file:///a/b mesh://two/file:%2F%2F%2Fa%2Fb skill://trim_video/trim-video/SKILL.md"},
		"resources/templates/list": {"resourceTemplates", "uriTemplate", "file:///a/{name}"},
	} {
		if got := p.list(method, of[0], of[1]); got != of[2] {
			t.Errorf("%s is %s, want %s", method, got, of[2])
		}
	}
}
