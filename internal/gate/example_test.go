package gate_test

import (
	"fmt"

	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/pkg/manifest"
)

func ExampleHost_Check() {
	host := gate.Host{LookupEnv: func(string) (string, bool) { return "", false }}
	r := host.Check(manifest.Requires{Bins: []string{"./no-such-tool"}, Env: []string{"API_TOKEN"}}, ".", []string{"BASE_URL"})
	fmt.Println(r.OK())
	fmt.Println(r)
	// Output:
	// false
	// missing bins: ./no-such-tool; missing env: API_TOKEN, BASE_URL
}

func ExampleEnv() {
	parent := []string{"PATH=/usr/bin", "WEATHER_TOKEN=w-123456", "GITHUB_TOKEN=g-123456"}
	env, stripped := gate.Env(parent, gate.EnvOptions{
		Allow:       []string{"WEATHER_TOKEN"},
		Add:         map[string]string{"UNITS": "metric"},
		ExtensionID: "weather",
	})
	fmt.Println(env)
	fmt.Println("stripped:", stripped)
	// Output:
	// [AGENT_EXTENSION_ID=weather PATH=/usr/bin UNITS=metric WEATHER_TOKEN=w-123456]
	// stripped: [GITHUB_TOKEN]
}

func ExampleRedactor_Redact() {
	parent := []string{"WEATHER_TOKEN=w-123456", "PATH=/usr/bin"}
	r := gate.NewRedactor(parent, []string{"WEATHER_TOKEN"}, nil)
	fmt.Println(r.Redact("GET /forecast?key=w-123456: 403 Forbidden"))
	// Output: GET /forecast?key=[WEATHER_TOKEN]: 403 Forbidden
}
