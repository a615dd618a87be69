package heartbeat_test

import (
	"encoding/json"
	"fmt"

	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// A service in another language sends at least its id; everything else has a default.
func ExampleParse() {
	m, err := heartbeat.Parse([]byte(`{"id":"weather","instance":"n1"}`))
	fmt.Println(m.ID, m.Instance, m.State, err)
	_, err = heartbeat.Parse([]byte(`{"id":"weather","state":"tired"}`))
	fmt.Println(err)
	// Output:
	// weather n1 ready <nil>
	// heartbeat of weather has the unknown state "tired"
}

func ExampleMessage() {
	m := heartbeat.Message{ID: "weather", Instance: "n1", Seq: 7, State: heartbeat.Draining, IntervalMS: 15000}
	text, err := json.Marshal(m)
	fmt.Println(string(text), err)
	// Output:
	// {"id":"weather","instance":"n1","seq":7,"interval_ms":15000,"state":"draining"} <nil>
}
