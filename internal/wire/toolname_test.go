package wire

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestToolName(t *testing.T) {
	long := strings.Repeat("x", 80)
	for _, c := range []struct {
		id, tool, want string
	}{
		{"weather", "get", "ext_weather_get"},
		{"google.gmail", "send-mail", "ext_google_gmail_send-mail"},
		{"weather", "get.now", "ext_weather_get_now_8c0027"},
		{"weather", long, "ext_weather_" + long[:45] + "_50e5e6"},
	} {
		if got := AssignNames([]ToolKey{{c.id, c.tool}})[ToolKey{c.id, c.tool}]; got != c.want {
			t.Errorf("%s/%s = %s, want %s", c.id, c.tool, got, c.want)
		}
	}
}

// TestNamesClash: all tools of a clash get a suffix, whatever the order, and lose it with the clash.
func TestNamesClash(t *testing.T) {
	var n Names
	a, b := ToolKey{"a-b", "c_d"}, ToolKey{"a-b_c", "d"}
	n.Set(a.ID, []string{a.Tool, "other"})
	if got := n.Name(a); got != "ext_a-b_c_d" {
		t.Fatalf("alone: %s", got)
	}
	if got := n.Set(b.ID, []string{b.Tool}); !slices.Equal(got, []string{"a-b", "a-b_c"}) {
		t.Errorf("changed: %v", got)
	}
	for _, k := range []ToolKey{a, b} {
		if got, want := n.Name(k), SuffixedName(k.ID, k.Tool, 6); got != want {
			t.Errorf("%v = %s, want %s", k, got, want)
		}
		for _, name := range []string{n.Name(k), k.String()} {
			if got := n.Lookup(name); len(got) != 1 || got[0].ToolKey != k {
				t.Errorf("Lookup(%s) = %v", name, got)
			}
		}
	}
	if got := n.Lookup("ext_a-b_c_d"); len(got) != 2 || got[0].ToolKey != a || got[1].ToolKey != b {
		t.Errorf("bare name: %v", got)
	}
	if got := n.Set(b.ID, nil); !slices.Equal(got, []string{"a-b", "a-b_c"}) {
		t.Errorf("changed: %v", got)
	}
	if got := n.Name(a); got != "ext_a-b_c_d" {
		t.Errorf("alone again: %s", got)
	}
}

// hostileTools makes tools that are likely to clash: few letters, ids that run into tools, dots, case, length.
func hostileTools(r *rand.Rand, count int) []ToolKey {
	ids := []string{"a", "a_b", "a_b_c", "a.b", "a-b", "b", "b_c", "b.c", "c"}
	parts := []string{"a", "B", "b", "c", "_", ".", "é", "a_b", "b_c", strings.Repeat("x", 60)}
	seen := map[ToolKey]bool{}
	for range count {
		var tool strings.Builder
		for range 1 + r.IntN(3) {
			tool.WriteString(parts[r.IntN(len(parts))])
		}
		seen[ToolKey{ids[r.IntN(len(ids))], tool.String()}] = true
	}
	keys := slices.Collect(maps.Keys(seen))
	// Tools named as others' suffixed forms.
	for _, k := range keys[:min(5, len(keys))] {
		name := strings.TrimPrefix(SuffixedName(k.ID, k.Tool, 6), "ext_a_")
		keys = append(keys, ToolKey{"a", name})
	}
	return keys
}

var legalName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func TestNamesProperties(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		keys := hostileTools(r, 1+r.IntN(60))
		want := AssignNames(keys)
		var n Names
		byID := map[string][]string{}
		for _, k := range keys {
			byID[k.ID] = append(byID[k.ID], k.Tool)
		}
		// Arrival in another order, one tool at a time, with comings and goings in between.
		known := map[string][]string{}
		r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		names := map[ToolKey]string{}
		step := func(id string, tools []string) {
			for _, changed := range n.Set(id, tools) {
				for _, own := range byID[changed] {
					names[ToolKey{changed, own}] = n.Name(ToolKey{changed, own})
				}
			}
		}
		for i, k := range keys {
			if i%7 == 3 {
				gone := keys[r.IntN(i)].ID
				known[gone] = nil
				step(gone, nil)
			}
			known[k.ID] = append(known[k.ID], k.Tool)
			step(k.ID, known[k.ID])
		}
		for id, tools := range byID {
			step(id, tools)
		}
		seen := map[string]ToolKey{}
		for k, name := range want {
			if names[k] != name {
				t.Errorf("%v is %s in one order and %s in another", k, name, names[k])
			}
			if !legalName.MatchString(name) {
				t.Errorf("%v has the illegal name %q", k, name)
			}
			if other, ok := seen[strings.ToLower(name)]; ok {
				t.Errorf("%v and %v are both %s", k, other, name)
			}
			seen[strings.ToLower(name)] = k
			for _, form := range []string{name, SuffixedName(k.ID, k.Tool, 6), k.String()} {
				if got := n.Lookup(form); len(got) != 1 || got[0].ToolKey != k || got[0].Name != name {
					t.Errorf("Lookup(%s) = %v, want %v", form, got, k)
				}
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
}

// TestNamesLen counts what random changes leave.
func TestNamesLen(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var n Names
	for range 2000 {
		tools := make([]string, r.IntN(5)) // some of them twice
		for i := range tools {
			tools[i] = string(rune('a' + r.IntN(6)))
		}
		n.Set(fmt.Sprintf("e%d", r.IntN(6)), tools)
		sum := 0
		for _, tools := range n.tools {
			sum += len(tools)
		}
		if n.Len() != sum {
			t.Fatalf("%d tools, counted %d", n.Len(), sum)
		}
	}
}

// BenchmarkNamesLen measures what each status request calls.
func BenchmarkNamesLen(b *testing.B) {
	var n Names
	for i := range 10_000 {
		n.Set(fmt.Sprintf("ext%d", i), []string{"x"})
	}
	for b.Loop() {
		if n.Len() != 10_000 {
			b.Fatal(n.Len())
		}
	}
}

// TestNamesDeep contests forms with 6 digits, which chance hardly ever does, by looking for a collision of the
// hash.
func TestNamesDeep(t *testing.T) {
	head := strings.Repeat("y", 60)
	first := map[string]ToolKey{}
	var pair []ToolKey
	for i := 0; pair == nil; i++ {
		k := ToolKey{"a", fmt.Sprintf("%s%d", head, i)}
		name := SuffixedName(k.ID, k.Tool, 6)
		if other, ok := first[name]; ok {
			pair = []ToolKey{other, k}
		}
		first[name] = k
	}
	var n Names
	n.Set("a", []string{pair[0].Tool})
	if got, want := n.Name(pair[0]), SuffixedName("a", pair[0].Tool, 6); got != want {
		t.Fatalf("alone: %s, want %s", got, want)
	}
	n.Set("a", []string{pair[0].Tool, pair[1].Tool})
	for _, k := range pair {
		if got, want := n.Name(k), SuffixedName(k.ID, k.Tool, longSuffix); got != want {
			t.Errorf("contested: %s, want %s", got, want)
		}
		if got := n.Lookup(n.Name(k)); len(got) != 1 || got[0].ToolKey != k {
			t.Errorf("Lookup(%s) = %v", n.Name(k), got)
		}
	}
	if got := n.Lookup(SuffixedName("a", pair[0].Tool, 6)); len(got) != 2 {
		t.Errorf("the contested form: %v", got)
	}
	n.Set("a", []string{pair[1].Tool})
	if got, want := n.Name(pair[1]), SuffixedName("a", pair[1].Tool, 6); got != want {
		t.Errorf("alone again: %s, want %s", got, want)
	}
	n.Set("a", nil)
	if len(n.bases)+len(n.forms)+len(n.tools) != 0 || n.Len() != 0 {
		t.Errorf("left over: %+v", n)
	}
}

func TestNearest(t *testing.T) {
	var n Names
	n.Set("weather", []string{"get_forecast", "alerts"})
	n.Set("mail", []string{"send"})
	for asked, want := range map[string]ToolKey{
		"send": {"mail", "send"}, "ext_weather_get_forcast": {"weather", "get_forecast"},
		"weather/get_forcast": {"weather", "get_forecast"}, "forecast": {"weather", "get_forecast"},
		"EXT_MAIL_SEND": {"mail", "send"}, "nothing/like": {},
	} {
		if len(n.Lookup(asked)) != 0 {
			t.Errorf("Lookup(%s) found something", asked)
		}
		got := append(NearestKeys(n.Keys(), asked), ToolKey{})
		if got[0] != want {
			t.Errorf("NearestKeys(%s) = %v, want %v", asked, got[0], want)
		}
	}
}

func BenchmarkNames(b *testing.B) {
	for _, size := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("tools=%d", size), func(b *testing.B) {
			var n Names
			ten := make([]string, 10)
			for i := range ten {
				ten[i] = fmt.Sprintf("tool_%d", i)
			}
			for i := range size / 10 {
				n.Set(fmt.Sprintf("ext%d", i), ten)
			}
			for b.Loop() {
				n.Set("one", ten)
				n.Set("one", nil)
			}
		})
	}
}
