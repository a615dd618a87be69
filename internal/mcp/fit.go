package mcp

import (
	"encoding/json"
	"slices"

	"github.com/extmesh/extmesh/internal/jsonrpc"
)

// objectSchema accepts any object.
var objectSchema = json.RawMessage(`{"type":"object"}`)

// FitInputSchema returns a tool's input schema as clients accept it. Many clients reject the whole list of tools for one
// schema whose root does not state the type object. change describes what was changed, if anything; ok is false if no
// object of arguments can satisfy the schema, so that the tool cannot be listed.
func FitInputSchema(schema json.RawMessage) (fit json.RawMessage, change string, ok bool) {
	if !isObject(schema) {
		return objectSchema, "the input schema was not an object", true
	}
	at, found := jsonrpc.Member(schema, "type")
	if !found {
		return addType(schema), "the type object was added to the input schema", true
	}
	switch one, many := typesOf(at.In(schema)); {
	case one == "object":
		return schema, "", true
	case slices.Contains(many, "object"):
		return jsonrpc.Splice(schema, at, []byte(`"object"`)), "the type of the input schema was reduced to object", true
	}
	return nil, "the type of the input schema is not object", false
}

// addType adds the type object as the first member.
func addType(schema json.RawMessage) json.RawMessage {
	out := append(json.RawMessage{}, `{"type":"object"`...)
	empty := true
	_ = jsonrpc.Each(schema, func(key, value []byte) bool { // it is an object
		empty = false
		out = append(append(append(out, `,"`...), key...), `":`...)
		out = append(out, value...)
		return true
	})
	if empty {
		return objectSchema
	}
	return append(out, '}')
}

// typesOf reads the member type of a schema: one name or a list.
func typesOf(raw json.RawMessage) (one string, many []string) {
	if json.Unmarshal(raw, &one) == nil {
		return one, nil
	}
	if json.Unmarshal(raw, &many) != nil {
		return "", nil
	}
	return "", many
}

// FitMember reports whether a client accepts a tool descriptor's member with this value. legacy is false if only clients
// of the modern era accept it.
func FitMember(key string, value json.RawMessage) (modern, legacy bool) {
	switch key {
	case "outputSchema":
		if !isObject(value) {
			return false, false
		}
		at, ok := jsonrpc.Member(value, "type")
		return true, ok && string(at.In(value)) == `"object"`
	case "_meta", "execution":
		ok := isObject(value)
		return ok, ok
	case "annotations":
		ok := fitAnnotations(value)
		return ok, ok
	case "icons":
		ok := len(value) > 0 && value[0] == '['
		return ok, ok
	case "title":
		_, ok := unquote(value)
		return ok, ok
	}
	return true, true
}

// Annotations are the hints of a tool's annotations. A nil hint is absent.
type Annotations struct {
	ReadOnly    *bool `json:"readOnlyHint"`
	Destructive *bool `json:"destructiveHint"`
	Idempotent  *bool `json:"idempotentHint"`
	OpenWorld   *bool `json:"openWorldHint"`
}

func fitAnnotations(value json.RawMessage) bool {
	var a struct {
		Annotations
		Title *string `json:"title"`
	}
	return isObject(value) && json.Unmarshal(value, &a) == nil
}

// NeedsTask reports whether a descriptor's execution member makes the tool usable only as a task.
func NeedsTask(execution json.RawMessage) bool {
	var e struct {
		TaskSupport string `json:"taskSupport"`
	}
	return json.Unmarshal(execution, &e) == nil && e.TaskSupport == "required"
}

func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }
