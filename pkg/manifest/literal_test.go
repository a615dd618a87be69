package manifest

import (
	"strings"
	"testing"
)

// TestWrittenForAShell: what only a shell would split or expand is reported with its position and the remedy.
func TestWrittenForAShell(t *testing.T) {
	const head = "[plugin]\nid = \"x\"\nversion = \"1.0.0\"\n[capabilities]\ntools = [\"t\"]\n"
	for _, tt := range []struct{ text, want string }{
		{"[transport]\ntype = \"stdio\"\ncommand = \"python3 main.py\"\n",
			`p:8:1: error: transport.command: is one program, the rest belongs in args: command = "python3", args = […]`},
		{"[transport]\ntype = \"stdio\"\ncommand = \"A=b npx server\"\n", `is one program; its variables belong in env`},
		{"[transport]\ntype = \"stdio\"\ncommand = \"./my program\"\n", ""},
		{"[transport]\ntype = \"stdio\"\ncommand = \"c\"\nargs = [\"~/data\"]\n", `p:9:9: warn: transport.args[0]: "~/data" is taken literally`},
		{"[transport]\ntype = \"stdio\"\ncommand = \"c\"\nargs = [\"$HOME/x\"]\n", `p:9:9: warn: transport.args[0]: "$HOME/x" is taken literally`},
		{"[transport]\ntype = \"stdio\"\ncommand = \"c\"\nargs = [\"${HOME}/x\"]\n", `p:9:9: warn: transport.args[0]: "${HOME}/x" is taken literally, because no shell reads it; write the value out, or set a variable in transport.env to "${HOME}/x"`},
		{"[transport]\ntype = \"stdio\"\ncommand = \"sh\"\nargs = [\"-c\", \"ls ${HOME}\"]\nenv = {A = \"${HOME}/x\"}\n", ""},
		{"[transport]\ntype = \"stdio\"\ncommand = \"sh\"\nargs = [\"-c\", \"echo $HOME\", \"costs $5\", \"^a$\"]\n", ""},
		{"[transport]\ntype = \"stdio\"\ncommand = \"c\"\nenv = {A = \"$API_KEY\"}\n", `transport.env.A: "$API_KEY" is taken literally, because no shell reads it; did you mean "${API_KEY}"?`},
		{"[transport]\ntype = \"http\"\nurl = \"https://example.com\"\nheaders = {Authorization = \"Bearer $T\"}\n", `did you mean "Bearer ${T}"?`},
		{"[transport]\ntype = \"stdio\"\ncommand = \"c\"\nenv = {A = \"$ecret\"}\n", ""}, // a password
		{"[mcp_servers.s]\ntype = \"stdio\"\ncommand = \"c\"\nargs = [\"~/data\"]\n", `did you mean "${HOME}/data"?`},
	} {
		_, diags := Parse("p", []byte(head+tt.text), Options{})
		got := lines(diags)
		if tt.want == "" && got != "" || tt.want != "" && !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.text, got, tt.want)
		}
	}
}
