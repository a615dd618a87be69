package door

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/extmesh/extmesh/pkg/mesh"
)

// maxInstructions is below the length at which clients cut the text (2,048 in Claude Code).
const maxInstructions = 1900

// instructions are the text that a client gives to the model: what this server is, and the extensions of the view. searches
// tells how the client finds the tools.
func instructions(o ViewOptions, tools int, shown []mesh.Extension, searches bool) string {
	switch o.Instructions {
	case "":
	case "none":
		return ""
	default:
		return o.Instructions
	}
	text := fmt.Sprintf("This server provides the tools of %d extensions on a tool mesh.", len(shown))
	if len(shown) == 0 {
		return "No extension on the tool mesh offers tools at the moment. This server sends a notification when tools are available."
	}
	if searches {
		with := fmt.Sprintf("%s, %s or %s, as the result says", toolCallRead, toolCall, toolCallDestructive)
		if o.ReadOnly {
			with = toolCallRead
		}
		text += fmt.Sprintf(" They have %d tools: find one with %s, then call it with %s.", tools, toolSearch, with)
	}
	text += " Extensions:"
	for i, e := range shown {
		line := "\n" + e.ID
		if about := firstLine(cmp.Or(e.Spec.Description, e.Spec.Name), 120); about != "" {
			line += ": " + about
		}
		more := fmt.Sprintf("\nand %d more", len(shown)-i)
		if len(text)+len(line)+len(more) > maxInstructions {
			return text + more
		}
		text += line
	}
	return strings.TrimSpace(text)
}
