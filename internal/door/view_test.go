package door

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/mcp"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
	"github.com/extmesh/extmesh/pkg/mesh"
)

// extension is an extension in the catalog, ready.
func extension(id string, tools ...mesh.Tool) mesh.Extension {
	return mesh.Extension{ID: id, Spec: &mesh.Spec{ID: id, Dialect: "mcp", Tools: tools},
		State: &mesh.StateDoc{State: heartbeat.Ready, Available: true, Since: time.Unix(1, 0)}}
}

// viewOf builds a view as a Door does.
func viewOf(t *testing.T, o ViewOptions, extensions ...mesh.Extension) *view {
	t.Helper()
	o = o.withDefaults()
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	cache := &lists{}
	cache.tools.update(extensions, slog.New(slog.DiscardHandler))
	v, _ := buildView(o, &view{}, extensions, cache, time.Unix(1000, 0))
	return v
}

func namesOf(v *view) []string {
	var out []string
	for _, t := range v.tools {
		out = append(out, t.name)
	}
	return out
}

// TestDescriptors checks how descriptors are repaired, and that one that cannot be does not affect the others.
func TestDescriptors(t *testing.T) {
	big := `"` + strings.Repeat("x", 300<<10) + `"`
	tests := []struct {
		name   string
		extra  []string
		legacy string // the members after the description; "": not listed
		modern string // if it differs
	}{
		{name: "plain", legacy: `"inputSchema":{"type":"object"}`},
		{name: "unknown members", extra: []string{"x-new", `{"n":1e400, "m":[1.0]}`, "execution", `{"taskSupport":"optional"}`},
			legacy: `"inputSchema":{"type":"object"},"x-new":{"n":1e400, "m":[1.0]},"execution":{"taskSupport":"optional"}`},
		{name: "no type", extra: []string{"inputSchema", `{"properties":{"a":{}}}`}, legacy: `"inputSchema":{"properties":{"a":{}},"type":"object"}`},
		{name: "empty schema", extra: []string{"inputSchema", `{ }`}, legacy: `"inputSchema":{"type":"object" }`},
		{name: "schema true", extra: []string{"inputSchema", `true`}, legacy: `"inputSchema":{"type":"object"}`},
		{name: "list of types", extra: []string{"inputSchema", `{"a":1,"type":["object","null"]}`}, legacy: `"inputSchema":{"a":1,"type":"object"}`},
		{name: "other type", extra: []string{"inputSchema", `{"type":"string"}`}},
		{name: "other types", extra: []string{"inputSchema", `{"type":["string"]}`}},
		{name: "type is a number", extra: []string{"inputSchema", `{"type":7}`}},
		{name: "only as a task", extra: []string{"execution", `{"taskSupport":"required"}`}},
		{name: "malformed members", extra: []string{"annotations", `[]`, "_meta", `7`, "execution", `"x"`, "icons", `{}`, "title", `7`, "outputSchema", `"x"`},
			legacy: `"inputSchema":{"type":"object"}`},
		{name: "boolean properties", extra: []string{"inputSchema", `{"type":"object","properties":{"a":true,"b":false,"c":{},"d":12},"required":["a"]}`, "outputSchema", `{"type":"object","properties":{"result":true}}`},
			legacy: `"inputSchema":{"type":"object","properties":{"a":{},"b":{"not":{}},"c":{},"d":{}},"required":["a"]},"outputSchema":{"type":"object","properties":{"result":{}}}`},
		{name: "nulls", extra: []string{"inputSchema", `{"type":"object","properties":null,"required":null}`, "annotations", `{"readOnlyHint":null}`, "icons", `[{"x":1}]`, "execution", `{"taskSupport":"later"}`},
			legacy: `"inputSchema":{"type":"object"}`},
		{name: "malformed hint", extra: []string{"annotations", `{"readOnlyHint":"yes"}`}, legacy: `"inputSchema":{"type":"object"}`},
		{name: "good members", extra: []string{"annotations", `{"readOnlyHint":true,"x":1}`, "icons", `[]`, "outputSchema", `{"type":"object"}`},
			legacy: `"inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true,"x":1},"icons":[],"outputSchema":{"type":"object"}`},
		{name: "output with a wrong keyword", extra: []string{"outputSchema", `{"type":"object","properties":{"a":{"type":"object","required":true}}}`}, legacy: `"inputSchema":{"type":"object"}`},
		{name: "output with a wrong type", extra: []string{"outputSchema", `{"type":"object","properties":{"a":{"type":"any"}}}`}, legacy: `"inputSchema":{"type":"object"}`},
		{name: "output with a foreign pattern", extra: []string{"outputSchema", `{"type":"object","properties":{"a":{"pattern":"(?i)x"}}}`}, legacy: `"inputSchema":{"type":"object"}`},
		{name: "output with a dangling reference", extra: []string{"outputSchema", `{"type":"object","properties":{"a":{"$ref":"#/$defs/b"}}}`}, legacy: `"inputSchema":{"type":"object"}`},
		{name: "output that only JavaScript compiles", extra: []string{"outputSchema", `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"type":"string","format":"email","pattern":"^(?!\\.)a"}},"patternProperties":{"(?<=x)":{}}}`},
			legacy: `"inputSchema":{"type":"object"},"outputSchema":{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"type":"string","format":"email","pattern":"^(?!\\.)a"}},"patternProperties":{"(?<=x)":{}}}`},
		{name: "output of an unknown dialect", extra: []string{"outputSchema", `{"$schema":"https://example.com/x","type":"object"}`}, legacy: `"inputSchema":{"type":"object"},"outputSchema":{"$schema":"https://example.com/x","type":"object"}`},
		{name: "output of any type", extra: []string{"outputSchema", `{"type":"array"}`}, legacy: `"inputSchema":{"type":"object"}`,
			modern: `"inputSchema":{"type":"object"},"outputSchema":{"type":"array"}`},
		{name: "line ends", extra: []string{"inputSchema", "{\"type\":\n\"object\"\r\n}"}, legacy: `"inputSchema":{"type": "object"  }`},
		{name: "large", extra: []string{"inputSchema", `{"type":"object","x":` + big + `}`}, legacy: `"inputSchema":{"type":"object"}`},
		{name: "large member", extra: []string{"x", big}, legacy: `"inputSchema":{"type":"object"}`},
	}
	var tools []mesh.Tool
	for i, tt := range tests {
		tools = append(tools, tool("x", fmt.Sprintf("t%02d", i), tt.extra...))
	}
	v := viewOf(t, ViewOptions{}, extension("x", tools...))
	for i, tt := range tests {
		name := fmt.Sprintf("ext_x_t%02d", i)
		listed := v.byName[name]
		if tt.legacy == "" {
			if listed != nil || !slices.ContainsFunc(v.hidden, func(h hidden) bool { return h.key.Tool == tools[i].Own && h.reason != "" }) {
				t.Errorf("%s: listed: %v; hidden: %v", tt.name, listed != nil, v.hidden)
			}
			continue
		}
		if listed == nil {
			t.Errorf("%s: not listed", tt.name)
			continue
		}
		head := fmt.Sprintf(`,"description":"[ext:x] What t%02d does.",`, i)
		if tt.modern == "" {
			tt.modern = tt.legacy
		}
		if got := string(listed.legacy); got != head+tt.legacy {
			t.Errorf("%s, legacy:\nhave %.300s\nwant %s", tt.name, got, head+tt.legacy)
		}
		if got := string(listed.modern); got != head+tt.modern {
			t.Errorf("%s, modern:\nhave %.300s\nwant %s", tt.name, got, head+tt.modern)
		}
	}
	for _, era := range []mcp.Era{mcp.EraLegacy, mcp.EraModern} {
		if list := v.page(era).text; !json.Valid(slices.Concat([]byte("["), list, []byte("]"))) {
			t.Errorf("the list of the %s era is not JSON", era)
		}
	}
}

func TestDescriptorOrder(t *testing.T) {
	v := viewOf(t, ViewOptions{}, extension("x", tool("x", "a", "annotations", "{}", "title", `"A"`)))
	want := `{"name":"ext_x_a","title":"A","description":"[ext:x] What a does.","inputSchema":{"type":"object"},"annotations":{}}`
	if got := string(v.legacy.text); got != want {
		t.Errorf("have %s\nwant %s", got, want)
	}
}

// TestViewReuse: after a change that leaves the tools as they were, the view has the same list and the same index for search.
func TestViewReuse(t *testing.T) {
	x, y := extension("x", tool("x", "a")), extension("y", tool("y", "b"))
	cache, none := &lists{}, &view{}
	view := func(old *view, extensions ...mesh.Extension) *view {
		cache.tools.update(extensions, slog.New(slog.DiscardHandler))
		v, _ := buildView(ViewOptions{}.withDefaults(), old, extensions, cache, time.Unix(1000, 0))
		return v
	}
	first := view(none, x)
	first.find("a", "", 1)
	restarting := x
	state := *x.State
	state.Reason = "it restarts"
	restarting.State = &state
	second, third := view(first, restarting), view(first, restarting, y)
	if second.search != first.search || &second.modern.text[0] != &first.modern.text[0] {
		t.Error("the list was made again")
	}
	if hits, _ := third.find("b", "", 1); third.search == first.search || len(hits) != 1 {
		t.Errorf("after a new tool: %d hits", len(hits))
	}
}

func TestFilters(t *testing.T) {
	read := []string{"annotations", `{"readOnlyHint":true}`}
	all := []mesh.Extension{
		extension("files", tool("files", "read", read...), tool("files", "write")),
		extension("web.search", tool("web.search", "find", read...)),
		extension("prod", tool("prod", "deploy")),
	}
	slashed := extension("dir", tool("dir", "a/delete"), tool("dir", "list"))
	for pattern, want := range map[string]string{"dir/*": "", "dir/*delete": "ext_dir_list", "dir/a*": "ext_dir_list"} {
		if got := strings.Join(namesOf(viewOf(t, ViewOptions{Exclude: []string{pattern}}, slashed)), " "); got != want {
			t.Errorf("without %s: %q", pattern, got)
		}
	}
	key := wire.ToolKey{ID: "files", Tool: "read_file"} // another tool claims ext_files_read_file, too, or has ended that
	for _, registered := range []string{wire.SuffixedName(key.ID, key.Tool, 6), "ext_files_read_file"} {
		for _, pattern := range []string{"ext_files_read_file", "ext_*_file", wire.SuffixedName(key.ID, key.Tool, 6)} {
			if (ViewOptions{Exclude: []string{pattern}}).permitsName(key, registered) {
				t.Errorf("%s is not %s", registered, pattern)
			}
		}
	}
	if o := (ViewOptions{Only: []string{"ext_files_read_file"}}); o.permitsName(key, wire.SuffixedName(key.ID, key.Tool, 6)) {
		t.Error("a name that two tools claim selects both")
	}
	if o := (ViewOptions{Exclude: []string{"ext_files_??????"}}); !o.permitsName(wire.ToolKey{ID: "files", Tool: "x"}, "ext_files_x") {
		t.Error("a pattern is compared with a hash")
	}
	for _, tt := range []struct {
		o    ViewOptions
		want string
	}{
		{ViewOptions{}, "ext_files_read ext_files_write ext_prod_deploy ext_web_search_find"},
		{ViewOptions{Only: []string{"files"}}, "ext_files_read ext_files_write"},
		{ViewOptions{Only: []string{"web.*", "prod"}}, "ext_prod_deploy ext_web_search_find"},
		{ViewOptions{Only: []string{"files/r*"}}, "ext_files_read"},
		{ViewOptions{Only: []string{"ext_*_find"}}, "ext_web_search_find"},
		{ViewOptions{Exclude: []string{"prod", "*/write"}}, "ext_files_read ext_web_search_find"},
		{ViewOptions{Only: []string{"files"}, Exclude: []string{"files/[rw]*"}}, ""},
		{ViewOptions{ReadOnly: true}, "ext_files_read ext_web_search_find"},
		{ViewOptions{Only: []string{"FILES"}}, ""},
		{ViewOptions{Names: NamesOwn}, "deploy find read write"},
	} {
		if got := strings.Join(namesOf(viewOf(t, tt.o, all...)), " "); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.o, got, tt.want)
		}
	}
}

func TestOwnNames(t *testing.T) {
	v := viewOf(t, ViewOptions{Names: NamesOwn},
		extension("a", tool("a", "search"), tool("a", "only_a"), tool("a", "ext_b_x")),
		extension("b", tool("b", "Search"), tool("b", "x"), tool("b", "has space")))
	want := []string{"ext_a_ext_b_x", "ext_a_search", "ext_b_Search", "ext_b_has_space", "only_a", "x"}
	if got := namesOf(v); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestNameProperties checks, for random tools, that names are unique, within the limit, valid, and independent of the
// order of the tools.
func TestNameProperties(t *testing.T) {
	valid := regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	r := rand.New(rand.NewPCG(1, 2))
	word := func(n int) string {
		b := make([]byte, 1+r.IntN(n))
		for i := range b {
			b[i] = "ab_"[r.IntN(3)]
		}
		return string(b)
	}
	for range 200 {
		keys := map[wire.ToolKey]bool{}
		for range 50 {
			keys[wire.ToolKey{ID: "a" + word(40), Tool: word(50)}] = true
		}
		registered := wire.AssignNames(slices.Collect(maps.Keys(keys)))
		var items []*item
		for key, name := range registered {
			items = append(items, &item{named: named{key, name}})
		}
		limit := 24 + r.IntN(41)
		mode := []NameMode{NamesRegistered, NamesOwn}[r.IntN(2)]
		names := assignNames(items, mode, limit)
		seen := map[string]bool{}
		for it, name := range names {
			if seen[name] || len(name) > limit || !valid.MatchString(name) {
				t.Fatalf("%v has the name %q with the limit %d; taken: %v", it.key, name, limit, seen[name])
			}
			seen[name] = true
		}
		r.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
		if again := assignNames(items, mode, limit); !maps.Equal(names, again) {
			t.Fatal("another order of the tools results in other names")
		}
	}
}

// TestUnavailable checks that a list does not change with restarts, and that a lost extension disappears after a while.
func TestUnavailable(t *testing.T) {
	since := time.Unix(1000, 0)
	for _, tt := range []struct {
		state heartbeat.State
		after time.Duration
		want  bool
		until time.Time
	}{
		{heartbeat.Ready, time.Hour, true, time.Time{}},
		{heartbeat.Restarting, 4 * time.Minute, true, since.Add(5 * time.Minute)},
		{heartbeat.Lost, 4 * time.Minute, true, since.Add(5 * time.Minute)},
		{heartbeat.Lost, 5 * time.Minute, false, since.Add(5 * time.Minute)},
		{heartbeat.Shutdown, time.Minute, true, since.Add(5 * time.Minute)},
		{heartbeat.Gated, 0, false, time.Time{}},
		{"", 0, false, time.Time{}},
	} {
		s := &mesh.StateDoc{State: tt.state, Available: tt.state == heartbeat.Ready, Since: since}
		if ok, until := isListed(s, since, 5*time.Minute, since.Add(tt.after)); ok != tt.want || !until.Equal(tt.until) {
			t.Errorf("%s after %v: %v until %v", tt.state, tt.after, ok, until)
		}
	}
}

// TestUnavailableSince checks that an extension which fails again and again counts as unavailable from the first failure on.
func TestUnavailableSince(t *testing.T) {
	at := func(minutes int) time.Time { return time.Unix(100_000, 0).Add(time.Duration(minutes) * time.Minute) }
	var l lists
	for _, step := range []struct {
		now   int
		state heartbeat.State
		since int // by the clock of the registry
		want  int
	}{
		{10, heartbeat.Failed, 3, 3}, // before the start of this server
		{11, heartbeat.Restarting, 11, 3},
		{12, heartbeat.Ready, 12, 12},
		{13, heartbeat.Failed, 2, 13}, // the registry's clock is slow
		{14, heartbeat.Restarting, 3, 13},
		{15, heartbeat.Failed, 4, 13},
		{16, heartbeat.Ready, 5, 5},
		{17, heartbeat.Lost, 99, 17},
	} {
		e := extension("x")
		e.State = &mesh.StateDoc{State: step.state, Available: step.state == heartbeat.Ready, Since: at(step.since)}
		l.noteUnavailable([]mesh.Extension{e}, at(step.now))
		if got := l.unavailableSince(e); !got.Equal(at(step.want)) {
			t.Errorf("at %d: %s since %v, want %v", step.now, step.state, got, at(step.want))
		}
	}
	e := extension("y")
	e.State = &mesh.StateDoc{State: heartbeat.Failed, Since: at(99)}
	l.noteUnavailable([]mesh.Extension{e}, at(20))
	if got := l.unavailableSince(e); !got.Equal(at(20)) {
		t.Errorf("a time in the future: %v", got)
	}
}

// TestPages lists views of several sizes page by page.
func TestPages(t *testing.T) {
	for _, n := range []int{0, 1, 1999, 2000, 2001, 5500} {
		var tools []mesh.Tool
		for i := range n {
			tools = append(tools, tool("x", fmt.Sprintf("t%05d", i)))
		}
		d := runDoor(t, Options{View: ViewOptions{Tools: ToolsAll}})
		d.view.now.Store(viewOf(t, d.view.opt, extension("x", tools...)))
		c := d.newClient(d.view, "")
		var got []string
		pages := 0
		for cursor := ""; ; pages++ {
			q := &request{method: mcp.MethodListTools, raw: []byte(`{}`)}
			if cursor != "" {
				q.raw = []byte(`{"cursor":"` + cursor + `"}`)
			}
			if err := q.parse(); err != nil {
				t.Fatal(err)
			}
			result, e := c.listTools(q)
			if e != nil {
				t.Fatal(e)
			}
			var list struct {
				Tools      []struct{ Name string }
				NextCursor string
			}
			if err := json.Unmarshal(result, &list); err != nil {
				t.Fatalf("%v: %.300s", err, result)
			}
			for _, tool := range list.Tools {
				got = append(got, tool.Name)
			}
			if cursor = list.NextCursor; cursor == "" {
				break
			}
		}
		if !slices.Equal(got, namesOf(d.view.now.Load())) {
			t.Errorf("%d tools: %d were listed, or not in order", n, len(got))
		}
		if want := map[bool]int{true: 0, false: (n - 1) / 1000}[n <= 2000]; pages != want {
			t.Errorf("%d tools: %d pages, want %d", n, pages+1, want+1)
		}
	}
}

// TestCursorOfRemovedTool continues a list after a tool that does not exist any more.
func TestCursorOfRemovedTool(t *testing.T) {
	v := viewOf(t, ViewOptions{}, extension("x", tool("x", "a"), tool("x", "c")))
	at, err := v.modern.after([]byte(`"` + cursorAfter("ext_x_b") + `"`))
	if err != nil || at != 1 {
		t.Errorf("it continues at %d, %v", at, err)
	}
	for _, bad := range []string{`"`, `7`, `""`, `"!!"`, `"AA"`, `"AmE"`, `"` + strings.Repeat("A", maxCursor) + `"`} {
		if _, err := v.modern.after([]byte(bad)); err == nil {
			t.Errorf("the cursor %s is accepted", bad)
		}
	}
}

func TestInstructions(t *testing.T) {
	for own, want := range map[string]string{"Search first.": "Search first.", "none": "", "": ""} { // before the catalog has been read
		d, err := New(Options{View: ViewOptions{Instructions: own}})
		if err != nil {
			t.Fatal(err)
		}
		if got := d.view.now.Load().instructions; got != [2]string{want, want} {
			t.Errorf("%q: %q", own, got)
		}
	}
	var many []mesh.Extension
	for i := range 300 {
		e := extension(fmt.Sprintf("e%03d", i), tool(fmt.Sprintf("e%03d", i), "x"))
		e.Spec.Description = "Does something.\nMore \x1b text."
		many = append(many, e)
	}
	for searches, text := range viewOf(t, ViewOptions{}, many...).instructions {
		if len(text) > maxInstructions || !strings.Contains(text, "300 extensions") || !strings.Contains(text, "\ne000: Does something\n") ||
			!regexp.MustCompile(`\nand \d+ more$`).MatchString(text) || strings.Contains(text, toolSearch) != (searches == 1) {
			t.Errorf("%d bytes: %s", len(text), text)
		}
	}
	if got := viewOf(t, ViewOptions{ReadOnly: true}, many...).instructions[1]; strings.Contains(got, toolCallDestructive) {
		t.Errorf("read-only: %s", got)
	}
	if got := viewOf(t, ViewOptions{Instructions: "none"}, many...).instructions; got != [2]string{} {
		t.Errorf("none: %q", got)
	}
	if got := viewOf(t, ViewOptions{Instructions: "Be quick."}, many...).instructions; got != [2]string{"Be quick.", "Be quick."} {
		t.Errorf("own: %q", got)
	}
}

func TestSearchDecision(t *testing.T) {
	o := ViewOptions{}.withDefaults()
	sized := func(n int) *view { return &view{tools: make([]listedTool, n)} }
	for _, tt := range []struct {
		mode   ToolMode
		tools  int
		before bool
		want   bool
	}{
		{ToolsAuto, 128, false, false}, {ToolsAuto, 129, false, true}, {ToolsAuto, 120, true, true}, {ToolsAuto, 115, true, false},
		{ToolsAll, 5000, true, false}, {ToolsSearch, 1, false, true},
	} {
		o.Tools = tt.mode
		if got := o.searches(sized(tt.tools), tt.before); got != tt.want {
			t.Errorf("%s with %d tools after %v: %v", tt.mode, tt.tools, tt.before, got)
		}
	}
	o.Tools = ToolsAuto
	large := sized(500)
	large.searching = true
	if o.searchesFor(large, "claude-code") || !o.searchesFor(large, "cursor") {
		t.Error("a client that searches by itself gets all tools, others do not")
	}
}
