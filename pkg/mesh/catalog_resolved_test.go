package mesh

import (
	"testing"
	"time"
)

func TestCatalogOfResolved(t *testing.T) {
	c, tool, err := CatalogOfResolved(nil, CatalogOptions{}, []byte(`{"catalog_id":"2026-01-02T03:04:05Z","revision":7,"age_ms":20000,"id":"weather",
		"tool":{"name":"ext_weather_today","tool":"today","input_schema":{"type":"object"},"annotations":{"readOnlyHint":true}},
		"spec":{"id":"weather","version":"1.2.0","dialect":"mcp","subject":"own.weather.rpc","features":["stream"]},
		"state":{"state":"ready","available":true,"instances":[{"instance":"i1","state":"ready"}]}}`))
	if err != nil || tool == nil || tool.Name != "ext_weather_today" {
		t.Fatal(tool, err)
	}
	for _, name := range []string{"ext_weather_today", "weather/today"} {
		e, found, err := c.Resolve(name)
		if err != nil || found.Own != "today" || len(found.Extra) != 1 || e.Spec.Subject != "own.weather.rpc" || len(e.State.Instances) != 1 {
			t.Errorf("%s: %+v %+v %v", name, e, found, err)
		}
	}
	if id, revision := c.Revision(); id != "2026-01-02T03:04:05Z" || revision != 7 {
		t.Error(id, revision)
	}
	if age := c.Age(); age < 20*time.Second || age > time.Minute {
		t.Error(age)
	}
	if _, tool, err := CatalogOfResolved(nil, CatalogOptions{}, []byte(`{"id":"weather","tool":null}`)); tool != nil || err != nil {
		t.Error(tool, err)
	}
	for _, bad := range []string{`[]`, `{}`, `{"id":"A b"}`, `{"id":"a","spec":7}`} {
		if _, _, err := CatalogOfResolved(nil, CatalogOptions{}, []byte(bad)); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}
