package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// nodeOf has slots of an extension, which nobody hears of.
func nodeOf(id string, instances ...string) *Publisher {
	n := NewPublisher(nil, PublisherOptions{})
	for _, i := range instances {
		n.slots[i] = n.Join(wire.Announce{ID: id, Version: "1.0.0", Instance: i})
	}
	return n
}

func instancesOf(slots []*Instance) []string {
	var out []string
	for _, s := range slots {
		out = append(out, s.instance)
	}
	slices.Sort(out)
	return out
}

func TestLostSlots(t *testing.T) {
	n := nodeOf("x", "mine", "too")
	n.slots["else"] = n.Join(wire.Announce{ID: "y", Version: "1.0.0", Instance: "else"})
	for _, tt := range []struct{ name, doc, lost string }{
		{"as the registry writes it", `{"state":"ready","instances":[{"instance":"a","state":"ready"},{"instance":"mine","host":"h","state":"lost"}]}`, "mine"},
		{"both", `{"state":"lost","instances":[{"instance":"too","state":"lost"},{"instance":"mine","state":"lost"}]}`, "mine too"},
		{"behind another", `{"state":"ready","instances":[{"instance":"a","state":"lost"},{"instance":"mine","state":"lost"}]}`, "mine"},
		{"before another", `{"state":"ready","instances":[{"instance":"mine","state":"lost"},{"instance":"a","state":"lost"}]}`, "mine"},
		{"another only", `{"state":"ready","instances":[{"instance":"mine","state":"ready"},{"instance":"a","state":"lost"}]}`, ""},
		{"nobody", `{"state":"ready","instances":[{"instance":"mine","state":"ready"}]}`, ""},
		{"the state first", `{"instances":[{"instance":"a","state":"lost"},{"state":"lost","instance":"mine"}],"state":"lost"}`, "mine"},
		{"the instance last", `{"instances":[{"state":"lost","breaker":{"state":"open"},"instance":"mine"}]}`, "mine"},
		{"white space", "{ \"instances\" : [ { \"instance\" : \"a\" , \"state\" : \"lost\" } ,\n\t{ \"instance\"\r:\"mine\",\n\"state\": \"lost\"\n} ] }", "mine"},
		{"white space in one", `{"instances":[{"instance":"a","state":"ready"}, { "instance":"mine","state":"lost"}]}`, "mine"},
		{"a brace in a reason", `{"instances":[{"instance":"a","reason":"}]","state":"lost"},{"instance":"mine","reason":"{\"instance\":","state":"lost"}]}`, "mine"},
		{"an object in between", `{"instances":[{"instance":"mine","breaker":{"instance":"a"},"state":"lost"}]}`, "mine"},
		{"an escaped name", `{"instances":[{"instance":"\u006dine","state":"lost"}]}`, "mine"},
		{"a key of another case", `{"instances":[{"instance":"a","state":"ready"},{"Instance":"mine","State":"lost"}]}`, "mine"},
		{"shut down", `{"state":"shutdown","instances":[{"instance":"a","state":"lost"},{"instance":"mine","state":"shutdown","reason":"shutdown"}]}`, "mine"},
		{"another is shut down", `{"state":"ready","instances":[{"instance":"mine","state":"ready"},{"instance":"a","state":"shutdown","reason":"shutdown"}]}`, ""},
		{"for a reason", `{"reason":"lost","instances":[{"instance":"mine","state":"ready","reason":"lost"}]}`, ""},
		{"another extension's", `{"instances":[{"instance":"else","state":"lost"},{"instance":"mine","state":"lost"}]}`, "mine"},
		{"no instances", `{"state":"lost"}`, ""},
		{"half of it", `{"instances":[{"instance":"mine","state":"lost"`, ""},
		{"half of another", `{"instances":[{"instance":"a","state":"lost"`, ""},
		{"no document", `"lost"`, ""},
		{"nothing", ``, ""},
		{"too much", `{"instances":[{"instance":"mine","state":"lost"}]}` + strings.Repeat(" ", maxStateDoc), ""},
	} {
		if got := strings.Join(instancesOf(n.lostSlots("x", []byte(tt.doc))), " "); got != tt.lost {
			t.Errorf("%s: %q are lost, want %q", tt.name, got, tt.lost)
		}
	}
}

// TestLostSlotsAnyForm writes documents in all manners, and compares with who is lost in them.
func TestLostSlotsAnyForm(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	n := nodeOf("x", "i0", "i1", "i2")
	states := []heartbeat.State{heartbeat.Ready, heartbeat.Ready, heartbeat.Lost, heartbeat.Failed}
	reasons := []string{"", "lost", `say "lost"`, `{"instance":"i1","state":"lost"}`, "}]}", `\`}
	// object writes members in a random order, or in the given one.
	object := func(members ...string) string {
		if r.IntN(3) == 0 {
			r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		}
		return "{" + strings.Join(members, ",") + "}"
	}
	member := func(key string, value any) string {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%q:%s", key, text)
	}
	for range 3000 {
		var want, elements []string
		for _, i := range r.Perm(6)[:r.IntN(7)] {
			id, state := fmt.Sprintf("i%d", i), states[r.IntN(len(states))]
			if state == heartbeat.Lost && i < 3 {
				want = append(want, id)
			}
			elements = append(elements, object(member("instance", id), member("host", "i1"), member("state", state),
				member("reason", reasons[r.IntN(len(reasons))]), `"breaker":{"state":"closed"}`, `"new":[{"instance":"i2","state":"lost"}]`))
		}
		slices.Sort(want)
		doc := []byte(object(member("state", states[r.IntN(len(states))]), member("reason", reasons[r.IntN(len(reasons))]),
			`"instances":[`+strings.Join(elements, ",")+`]`))
		if r.IntN(3) == 0 {
			var b bytes.Buffer
			if err := json.Indent(&b, doc, "", "\t"); err != nil {
				t.Fatal(err)
			}
			doc = b.Bytes()
		}
		if got := instancesOf(n.lostSlots("x", doc)); !slices.Equal(got, want) {
			t.Fatalf("%v are lost, want %v, in %s", got, want, doc)
		}
	}
}

// thousand is the state of an extension with 1,000 instances, one of which is lost, and the instance of another.
func thousand(t testing.TB) (data []byte, mine string) {
	doc := wire.StateDoc{State: heartbeat.Ready, Available: true, Since: time.Unix(1, 0).UTC()}
	for i := range 1000 {
		doc.Instances = append(doc.Instances, wire.InstanceState{Instance: fmt.Sprintf("Zn4VWzX9kAEVgcTNtp%04d", i), Host: "web-3",
			Bridge: "web-3", Version: "1.0.0", State: heartbeat.Ready, Since: time.Unix(1, 0).UTC(), Breaker: &heartbeat.Breaker{State: "closed"}})
	}
	doc.Instances[500].State, doc.Instances[500].Reason = heartbeat.Lost, "silent for 45s"
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return data, doc.Instances[7].Instance
}

// TestLostSlotsOfOthers decodes no more than the one instance that is lost.
func TestLostSlotsOfOthers(t *testing.T) {
	data, mine := thousand(t)
	n := nodeOf("x", mine)
	if allocs := testing.AllocsPerRun(10, func() { n.lostSlots("x", data) }); allocs > 50 {
		t.Errorf("%v allocations to learn that another is lost", allocs)
	}
}

// BenchmarkLostSlots is what a node makes of a change in an extension with 1,000 instances, one of which is lost on
// another node.
func BenchmarkLostSlots(b *testing.B) {
	data, mine := thousand(b)
	n := nodeOf("x", mine)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		n.lostSlots("x", data)
	}
}
