package mcp

import (
	"bytes"
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
	if fit, change, ok = fitType(schema); ok && change == "" {
		fit, change = FitProperties(fit)
	} else if ok {
		fit, _ = FitProperties(fit)
	}
	return fit, change, ok
}

// FitProperties returns an object schema whose properties are objects and whose required is a list of names, as the TypeScript SDK
// wants them. Schemas of Go and Python programs have the property true for a value of any type.
func FitProperties(schema json.RawMessage) (fit json.RawMessage, change string) {
	changed := false
	out := rebuild(schema, func(key string, value []byte) []byte {
		fit := value
		switch {
		case key == "properties" && !isObject(value), key == "required" && !isTexts(value):
			fit = nil
		case key == "properties":
			fit = fitProperties(value)
		}
		changed = changed || !bytes.Equal(fit, value)
		return fit
	})
	if !changed {
		return schema, ""
	}
	return out, "properties that clients do not accept were replaced in a schema"
}

// fitProperties replaces what is not an object.
func fitProperties(properties []byte) []byte {
	same := true
	out := rebuild(properties, func(_ string, value []byte) []byte {
		switch {
		case isObject(value):
			return value
		case string(value) == "false":
			value = []byte(`{"not":{}}`)
		default:
			value = []byte("{}")
		}
		same = false
		return value
	})
	if same {
		return properties
	}
	return out
}

// rebuild returns an object with other values for its members; nil leaves a member out.
func rebuild(object []byte, change func(key string, value []byte) []byte) []byte {
	out := []byte{'{'}
	_ = jsonrpc.Each(object, func(key, value []byte) bool { // it is an object
		if value = change(string(keyName(key)), value); value == nil {
			return true
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, '"'), key...), `":`...)
		out = append(out, value...)
		return true
	})
	return append(out, '}')
}

// isTexts reports whether raw is a list of texts.
func isTexts(raw []byte) bool {
	var texts []*string
	return len(raw) > 0 && raw[0] == '[' && json.Unmarshal(raw, &texts) == nil && !slices.Contains(texts, nil)
}

// fitType makes object the type of an input schema.
func fitType(schema json.RawMessage) (fit json.RawMessage, change string, ok bool) {
	if !isObject(schema) {
		return objectSchema, "the input schema was not an object", true
	}
	at, found := jsonrpc.Member(schema, "type")
	if !found {
		fit, _ = jsonrpc.SetMember(schema, "type", []byte(`"object"`)) // it is an object
		return fit, "the type object was added to the input schema", true
	}
	switch one, many := typesOf(at.In(schema)); {
	case one == "object":
		return schema, "", true
	case slices.Contains(many, "object"):
		return jsonrpc.Splice(schema, at, []byte(`"object"`)), "the type of the input schema was reduced to object", true
	}
	return nil, "the type of the input schema is not object", false
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
	case "_meta":
		ok := isObject(value)
		return ok, ok
	case "execution":
		var e struct {
			TaskSupport *string `json:"taskSupport"`
		}
		ok := isObject(value) && json.Unmarshal(value, &e) == nil && !hasNull(value, "taskSupport") &&
			(e.TaskSupport == nil || slices.Contains([]string{"required", "optional", "forbidden"}, *e.TaskSupport))
		return ok, ok
	case "annotations":
		ok := fitAnnotations(value)
		return ok, ok
	case "icons":
		ok := fitIcons(value)
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
	return isObject(value) && json.Unmarshal(value, &a) == nil && !hasNull(value, "title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
}

// hasNull reports whether one of the members of an object is null, which clients do not accept for an optional member.
func hasNull(object []byte, members ...string) (yes bool) {
	if !bytes.Contains(object, []byte("null")) {
		return false
	}
	_ = jsonrpc.Each(object, func(key, value []byte) bool {
		yes = yes || string(value) == "null" && slices.Contains(members, string(keyName(key)))
		return true
	})
	return yes
}

// fitIcons reports whether clients accept icons: each needs a source, and its other members the right types.
func fitIcons(value []byte) bool {
	var icons []json.RawMessage
	if len(value) == 0 || value[0] != '[' || json.Unmarshal(value, &icons) != nil {
		return false
	}
	for _, text := range icons {
		var icon struct {
			Src      *string  `json:"src"`
			MimeType string   `json:"mimeType"`
			Sizes    []string `json:"sizes"`
			Theme    string   `json:"theme"`
		}
		if json.Unmarshal(text, &icon) != nil || icon.Src == nil || hasNull(text, "mimeType", "sizes", "theme") ||
			!slices.Contains([]string{"", "light", "dark"}, icon.Theme) {
			return false
		}
	}
	return true
}

// NeedsTask reports whether a descriptor's execution member makes the tool usable only as a task.
func NeedsTask(execution json.RawMessage) bool {
	var e struct {
		TaskSupport string `json:"taskSupport"`
	}
	return json.Unmarshal(execution, &e) == nil && e.TaskSupport == "required"
}

func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }
