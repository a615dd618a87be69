package main

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/nearest"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
)

// foreignVerbs are the verbs of other programs (kubectl, docker, nats, gh), each with the verbs of extctl for the same
// purpose, best first.
var foreignVerbs = map[string][]string{
	"get": {"list", "tools"}, "ls": {"list"}, "ps": {"list"}, "state": {"status"}, "health": {"status"}, "servers": {"list", "hosts"},
	"inspect": {"show"}, "view": {"show"}, "explain": {"tool"}, "args": {"tool"},
	"nodes": {"hosts"}, "bridges": {"hosts"}, "bridge": {"hosts"}, "extensions": {"list"},
	"run": {"up", "call"}, "start": {"up"}, "serve": {"up", "mcp"}, "server": {"up"}, "down": {"drain"},
	"rm": {"uninstall", "forget"}, "remove": {"uninstall", "forget"}, "delete": {"uninstall", "forget"}, "del": {"uninstall", "forget"},
	"stop": {"drain"}, "kill": {"restart", "drain"}, "pause": {"drain", "disable"}, "cordon": {"drain"}, "reboot": {"restart"},
	"exec": {"call"}, "invoke": {"call"}, "req": {"call"}, "request": {"call"}, "trace": {"calls"}, "errors": {"calls"}, "use": {"call"},
	"metrics": {"stats"}, "history": {"events", "calls"}, "benchmark": {"bench"}, "load": {"bench"},
	"log": {"logs"}, "tail": {"logs"}, "sub": {"watch"}, "follow": {"watch"},
	"create": {"new"}, "init": {"new"}, "scaffold": {"new"}, "add": {"add", "install", "new"}, "import": {"import", "install"}, "link": {"install"},
	"check": {"validate", "doctor"}, "test": {"doctor", "validate"}, "lint": {"validate"}, "verify": {"validate"}, "diagnose": {"doctor"},
	"update": {"install"}, "upgrade": {"install"}, "apply": {"reload", "install"}, "refresh": {"reload"},
	"ui": {"status", "top"}, "dashboard": {"status", "top"}, "address": {"url"}, "connect": {"url"}, "context": {"status", "url"}, "whoami": {"status"}, "problems": {"status"},
}

var unknownCommand = regexp.MustCompile(`^unknown command "([^"]*)" for "extctl"`)

// unknownWord is the verb that cobra does not find.
func unknownWord(err error) (word string, ok bool) {
	m := unknownCommand.FindStringSubmatch(err.Error())
	if m == nil {
		return "", false
	}
	return m[1], true
}

// unknownVerb is the error of a verb that extctl does not have. The hint has those that another program calls so, or those
// with a similar name.
func unknownVerb(root *cobra.Command, word string) error {
	f := &failure{code: exitUsage, err: errors.New(`unknown command "` + terminal.Clean(word) + `" for "extctl"`), hint: "see extctl --help"}
	var known []string
	about := map[string]string{}
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() {
			known, about[c.Name()] = append(known, c.Name()), c.Short
		}
	}
	var same []string
	for _, verb := range foreignVerbs[strings.ToLower(word)] {
		if about[verb] != "" {
			same = append(same, "extctl "+verb+" ("+about[verb]+")")
		}
	}
	if len(same) > 0 {
		f.hint = "did you mean " + words.Or(same) + "?"
		return f
	}
	near := nearest.Words(word, known)
	if len(word) <= 4 { // two typing errors in a short word are another word
		near = slices.DeleteFunc(near, func(verb string) bool { return nearest.Distance(strings.ToLower(word), verb, 2) > 1 })
	}
	for _, verb := range known {
		if len(word) > 1 && strings.HasPrefix(verb, word) && !slices.Contains(near, verb) {
			near = append(near, verb)
		}
	}
	if len(near) > 0 {
		f.hint = "did you mean " + words.Or(near) + "?"
		f.data = map[string]any{"nearest": near}
	}
	return f
}
