package mcp

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/jsonrpc"
)

// FitEntry returns an entry of a list of prompts, resources or templates as clients accept it, on one line: members that
// are malformed are left out, because many clients reject the whole list for one of them. key is the member that
// identifies the entry: name, uri or uriTemplate. ok is false if that is not a text.
func FitEntry(key string, entry json.RawMessage) (fit []byte, id string, ok bool) {
	if !isObject(entry) {
		return nil, "", false
	}
	at, ok := jsonrpc.Member(entry, key)
	if ok {
		id, ok = unquote(at.In(entry))
	}
	if !ok || id == "" {
		return nil, "", false
	}
	malformed, named := false, false
	fit = rebuild(entry, func(name string, value []byte) []byte {
		if name == "arguments" && bytes.Contains(value, []byte("null")) {
			value, malformed = withoutNulls(value), true
		}
		if !fitsEntry(name, value) {
			malformed = true
			return nil
		}
		named = named || name == "name"
		return value
	})
	if !malformed {
		fit = entry
	}
	if !named {
		fit, _ = jsonrpc.SetMember(fit, "name", Quote(id)) // it is an object
	}
	return OneLine(fit), id, true
}

// withoutNulls leaves the members that are null out of each argument of a prompt.
func withoutNulls(arguments []byte) []byte {
	var all []map[string]json.RawMessage
	if json.Unmarshal(arguments, &all) != nil {
		return arguments
	}
	for _, a := range all {
		maps.DeleteFunc(a, func(_ string, value json.RawMessage) bool { return string(value) == "null" })
	}
	out, err := json.Marshal(all)
	if err != nil { // they were JSON
		return arguments
	}
	return out
}

// fitsEntry reports whether clients accept a member of an entry.
func fitsEntry(name string, value []byte) bool {
	switch name {
	case "name", "uri", "uriTemplate", "title", "description", "mimeType":
		_, ok := unquote(value)
		return ok
	case "size":
		return value[0] == '-' || '0' <= value[0] && value[0] <= '9'
	case "_meta":
		return isObject(value)
	case "annotations":
		var a struct {
			Audience     []string `json:"audience"`
			Priority     *float64 `json:"priority"`
			LastModified *string  `json:"lastModified"`
		}
		if !isObject(value) || json.Unmarshal(value, &a) != nil || hasNull(value, "audience", "priority", "lastModified") || a.Priority != nil && (*a.Priority < 0 || *a.Priority > 1) {
			return false
		}
		if a.LastModified != nil {
			if _, err := time.Parse(time.RFC3339, *a.LastModified); err != nil {
				return false
			}
		}
		return !slices.ContainsFunc(a.Audience, func(who string) bool { return who != "user" && who != "assistant" })
	case "icons":
		return fitIcons(value)
	case "arguments":
		var arguments []struct {
			Name        string  `json:"name"`
			Title       *string `json:"title"`
			Description *string `json:"description"`
			Required    *bool   `json:"required"`
		}
		if value[0] != '[' || json.Unmarshal(value, &arguments) != nil {
			return false
		}
		for _, a := range arguments {
			if a.Name == "" {
				return false
			}
		}
	}
	return true
}
