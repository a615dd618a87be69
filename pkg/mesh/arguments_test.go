package mesh

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/pkg/mesh/schema"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// celsius decodes itself, from "21 °C".
type celsius struct{ degrees string }

func (c *celsius) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &c.degrees) }

type typedOrder struct {
	Order struct {
		SKU string `json:"sku"`
		Qty int    `json:"qty"`
	} `json:"order"`
	Lines []struct {
		N int `json:"n"`
	} `json:"lines,omitempty"`
	From  netip.Addr     `json:"from,omitzero"`
	Temp  celsius        `json:"temp,omitzero"`
	At    time.Time      `json:"at,omitzero"`
	By    map[string]int `json:"by,omitempty"`
	Ratio float64        `json:"ratio,omitempty"`
}

// TestTypedArguments: what fits the schema of a typed tool is decoded, and nothing else, at every level.
func TestTypedArguments(t *testing.T) {
	box := &Toolbox{Version: "1.0.0"}
	AddTool(box, "x", "", func(_ context.Context, in typedOrder) (string, error) {
		text, err := json.Marshal([]any{in.Order, in.Lines, in.By, in.Ratio})
		return string(text) + in.From.String() + in.Temp.degrees, err
	})
	for _, tt := range []struct{ args, want, wrong string }{
		{`{"order":{"sku":"a","qty":1},"_meta":{"x":1}}`, `{"sku":"a","qty":1}`, ""},
		{`{"order":{"sku":"a","qty":6.0},"lines":[{"n":1e3}],"by":{"a":-2.0},"ratio":0.50}`, `[{"sku":"a","qty":6},[{"n":1000}],{"a":-2},0.5]`, ""},
		{`{"order":{"sku":"a","qty":1},"from":"10.0.0.1","temp":"21","at":"2026-11-27T00:00:00Z"}`, "10.0.0.121", ""},
		{`{"order":{"sku":"a"}}`, "", "it needs order.qty"},
		{`{"order":{"sku":"a","qty":null}}`, "", "order.qty is null"},
		{`{"order":{"sku":"a","qty":1,"QTY":2}}`, "", "order.QTY is unknown"},
		{`{"order":{"sku":"a","qty":1},"lines":[{"n":1},{"m":1}]}`, "", "it needs lines[1].n"},
		{`{"order":{"sku":"a","qty":1.5}}`, "", "cannot unmarshal number 1.5"},
		{`{"order":{"sku":"a","qty":1},"from":"no"}`, "", "ParseAddr"},
	} {
		check, err := schema.Compile(box.tool("x").InputSchema) // one each: it pauses after a check that takes long
		if err != nil {
			t.Fatal(err)
		}
		result, err := box.Handle(t.Context(), &rpc.Request{ID: json.RawMessage("1"), Method: "tools/x", Params: json.RawMessage(tt.args)})
		var got string
		_ = json.Unmarshal(result, &got) // "" for an error
		if tt.wrong == "" && (err != nil || !strings.Contains(got, tt.want)) || tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)) {
			t.Errorf("%s: %s, %v", tt.args, got, err)
		}
		if invalid := check(json.RawMessage(tt.args)); !strings.Contains(tt.args, "_meta") && (invalid != nil) != (tt.wrong != "") && tt.wrong != "ParseAddr" {
			t.Errorf("%s: the schema's check: %v", tt.args, invalid)
		}
	}
}
