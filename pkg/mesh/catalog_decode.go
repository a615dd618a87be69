package mesh

import (
	"encoding/json"
	"errors"

	"github.com/extmesh/extmesh/internal/jsonrpc"
	"github.com/extmesh/extmesh/internal/wire"
)

// decodeSpec reads a Spec as json.Unmarshal does, several times as fast, and without copying the schemas: they are slices
// of data. A follower reads a hundred thousand tools when it starts, and most of their bytes are schemas.
func decodeSpec(data []byte) (*Spec, error) {
	s := new(Spec)
	rest, tools, err := wire.SplitTools(data) // it checks the grammar of all of data
	if err == nil {
		err = json.Unmarshal(rest, s)
	}
	if err != nil {
		return nil, err
	}
	s.Tools = nil // a "Tools" of another spelling
	if tools == nil || string(tools) == "null" {
		return s, nil
	}
	if tools[0] != '[' {
		return nil, errors.New("tools: want an array")
	}
	s.Tools = []Tool{}
	_ = jsonrpc.Elements(tools, func(element []byte) bool { // its grammar was checked above
		var t Tool
		t, err = wire.DecodeTool(element)
		s.Tools = append(s.Tools, t)
		return err == nil
	})
	return s, err
}
