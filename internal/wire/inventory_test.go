package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

const fullInventory = `{"schema_version":1,"bridge":"web-3","run":"r1","seq":7,"kind":"full","interval_ms":15000,` +
	`"host":{"host":"web-3.example.org","version":"1.0.0","since":"2026-11-21T11:58:00Z","problems":[{"path":"/x","kind":"invalid","message":"m"}]},` +
	`"instances":[{"id":"hello","version":"1.4.0","instance":"i1","bridge":"web-3","state":"ready","restarts":2,"breaker":{"state":"closed"}},` +
	`{"id":"weather","version":"1.0.0","transport":"nats"}],"skills":[{"dir":"s","name":"S","body":"b"}]}`

func TestParseInventory(t *testing.T) {
	v, err := ParseInventory("web-3", []byte(fullInventory))
	if err != nil {
		t.Fatal(err)
	}
	if v.Kind != InventoryFull || v.Run != "r1" || v.Seq != 7 || v.Part != 1 || v.Parts != 1 || v.IntervalMS != 15000 {
		t.Errorf("head: %+v", v)
	}
	if v.Host == nil || v.Host.Version != "1.0.0" || len(v.Host.Problems) != 1 || len(v.Skills) != 1 {
		t.Errorf("host %+v, skills %v", v.Host, v.Skills)
	}
	if len(v.Instances) != 2 {
		t.Fatalf("instances: %+v", v.Instances)
	}
	hello := v.Instances[0]
	if hello.ID != "hello" || hello.Version != "1.4.0" || hello.State != "ready" || hello.Restarts != 2 || hello.Breaker == nil {
		t.Errorf("instance: %+v", hello)
	}
	for _, i := range v.Instances {
		if err := i.Check("web-3"); err != nil {
			t.Error(err)
		}
	}
}

func TestParseInventoryOfEveryKind(t *testing.T) {
	for _, text := range []string{
		`{"bridge":"b","run":"r","seq":1,"kind":"full","host":{"version":"1.0.0","since":"2026-11-21T11:58:00Z"}}`,
		`{"bridge":"b","run":"r","seq":2,"kind":"full","part":2,"parts":2,"instances":[{"id":"a","version":"1.0.0"}]}`,
		`{"bridge":"b","run":"r","seq":3,"kind":"delta","removed":[{"id":"a","instance":"i"}],"removed_skills":["s"]}`,
		`{"bridge":"b","run":"r","seq":4,"kind":"delta","host":{"version":"1.0.0","since":"2026-11-21T11:58:00Z"}}`,
		`{"bridge":"b","run":"r","seq":4,"kind":"heartbeat","later":"member"}`,
	} {
		if _, err := ParseInventory("b", []byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestParseInventoryRefuses(t *testing.T) {
	host := `"host":{"version":"1.0.0","since":"2026-11-21T11:58:00Z"}`
	many := strings.TrimSuffix(strings.Repeat(`{"id":"a"},`, MaxInventoryInstances+1), ",")
	for _, c := range []struct{ text, want string }{
		{`[]`, "not valid JSON"},
		{strings.Repeat(" ", MaxInventory+1), "over the limit"},
		{`{"schema_version":9,"bridge":"b","run":"r","seq":1,"kind":"heartbeat"}`, "upgrade the registry"},
		{`{"bridge":"other","run":"r","seq":1,"kind":"heartbeat"}`, "does not match"},
		{`{"bridge":"b","seq":1,"kind":"heartbeat"}`, "run"},
		{`{"bridge":"b","run":"a.b","seq":1,"kind":"heartbeat"}`, "run"},
		{`{"bridge":"b","run":"r","kind":"heartbeat"}`, "no seq"},
		{`{"bridge":"b","run":"r","seq":1}`, "unknown kind"},
		{`{"bridge":"b","run":"r","seq":1,"kind":"partial"}`, "unknown kind"},
		{`{"bridge":"b","run":"r","seq":1,"kind":"full"}`, "first part"},
		{`{"bridge":"b","run":"r","seq":2,"kind":"full","part":2,"parts":2,` + host + `}`, "first part"},
		{`{"bridge":"b","run":"r","seq":3,"kind":"full","part":3,"parts":2}`, "part 3 of 2"},
		{`{"bridge":"b","run":"r","seq":1,"kind":"full","part":2,"parts":2}`, "part 2 of 2"},
		{`{"bridge":"b","run":"r","seq":1,"kind":"full","removed":[{"id":"a"}],` + host + `}`, "no removals"},
		{`{"bridge":"b","run":"r","seq":1,"kind":"delta","parts":2}`, "one part"},
		{`{"bridge":"b","run":"r","seq":1,"kind":"heartbeat","removed":[{"id":"a"}]}`, "lists nothing"},
		{`{"bridge":"b","run":"r","seq":1,"kind":"delta","instances":[` + many + `]}`, "more than"},
	} {
		if _, err := ParseInventory("b", []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.100s: %v, want %q", c.text, err, c.want)
		}
	}
}

func TestCheckInventoryInstance(t *testing.T) {
	for _, c := range []struct{ members, want string }{
		{`"instance":"i","bridge":"b","state":"gated"`, ""},
		{``, ""},
		{`"state":"ready"`, "only an instance has"},
		{`"bridge":"b"`, "runs elsewhere"},
		{`"instance":"i.j","bridge":"b","state":"ready"`, "want at most 64"},
		{`"instance":"i","bridge":"other","state":"ready"`, "the inventory is of"},
		{`"instance":"i","state":"ready"`, "the inventory is of"},
		{`"instance":"i","bridge":"b"`, "not a state"},
		{`"instance":"i","bridge":"b","state":"lost"`, "not a state"},
		{`"instance":"i","bridge":"b","state":"ready","breaker":{"state":"ajar"}`, "breaker state"},
	} {
		var i InventoryInstance
		text := strings.TrimSuffix(fmt.Sprintf(`{"id":"a","version":"1.0.0",%s`, c.members), ",") + "}"
		if err := json.Unmarshal([]byte(text), &i); err != nil {
			t.Fatal(err)
		}
		err := i.Check("b")
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", text, err, c.want)
		}
	}
}

func FuzzParseInventory(f *testing.F) {
	f.Add([]byte(fullInventory))
	f.Add([]byte(`{"bridge":"web-3","run":"r","seq":4,"kind":"heartbeat"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := ParseInventory("web-3", data)
		if err == nil && (v.Bridge != "web-3" || v.Seq == 0 || v.Part < 1 || v.Part > v.Parts && v.Kind == InventoryFull) {
			t.Errorf("accepted: %+v", v)
		}
	})
}
