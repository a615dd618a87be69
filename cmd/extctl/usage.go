package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/nearest"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
)

// usageFailure turns cobra's message about a command line into an error and a hint.
func usageFailure(verb string, err error) error {
	if as[*failure](err) {
		return err
	}
	message, _, _ := strings.Cut(err.Error(), "\n\nDid you mean this?\n")
	return fail(exitUsage, "%s", message).with("see "+verb+" --help", nil)
}

// flagNames matches the names in a list of flags as --help prints it.
var flagNames = regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z-]+)`)

// flagFailure suggests the flag that an unknown one may have been meant to be, or the tool's argument. line is the command
// line.
func flagFailure(cmd *cobra.Command, line []string, err error) error {
	// This is pflag's *NotExistError; pflag is an indirect dependency, which must not be imported.
	unknown, ok := errors.AsType[interface {
		error
		GetSpecifiedName() string
	}](err)
	if !ok {
		return err
	}
	var known []string
	for _, m := range flagNames.FindAllStringSubmatch(cmd.Flags().FlagUsages(), -1) {
		known = append(known, m[1])
	}
	f := fail(exitUsage, "%w", err).with("see "+cmd.CommandPath()+" --help", nil)
	if strings.HasPrefix(err.Error(), "flag needs an argument") { // the flag exists, its value is missing
		return f
	}
	name := unknown.GetSpecifiedName()
	near := nearest.Words(name, known)
	takesArguments := slices.Contains([]string{"call", "bench"}, cmd.Name()) && strings.HasPrefix(err.Error(), "unknown flag: --")
	if typed := strings.ToLower(name); takesArguments && typed != "" { // text is no attempt at --context
		near = slices.DeleteFunc(near, func(flag string) bool {
			return !strings.HasPrefix(flag, typed) && (flag[0] != typed[0] || nearest.Distance(typed, flag, 3) == 3)
		})
	}
	if len(near) > 0 {
		f.hint = "did you mean --" + strings.Join(near, " or --") + "?"
	} else if takesArguments {
		f.hint = "a tool's arguments are written without dashes: " + withoutDashes(cmd, line)
	}
	return f
}

// withoutDashes is a command line with key=value instead of each flag that cmd does not have.
func withoutDashes(cmd *cobra.Command, line []string) string {
	out, first := []string{"extctl"}, []string(nil)
	command, tool := false, false // have been seen
	for i := 0; i < len(line); i++ {
		name, value, set := strings.Cut(strings.TrimPrefix(line[i], "--"), "=")
		if !strings.HasPrefix(line[i], "--") || name == "" || cmd.Flag(name) != nil {
			out = append(out, terminal.ShellWord(line[i]))
			tool = tool || command && !strings.HasPrefix(line[i], "-")
			command = command || line[i] == cmd.Name()
			continue
		}
		if !set && tool && i+1 < len(line) && !strings.HasPrefix(line[i+1], "--") && !strings.Contains(line[i+1], "=") {
			i++
			value, set = line[i], true
		}
		if !set {
			value = "true"
		}
		if argument := terminal.ShellWord(name + "=" + value); tool {
			out = append(out, argument)
		} else { // it follows the tool
			first = append(first, argument)
		}
	}
	return strings.Join(append(out, first...), " ")
}

// explainArguments makes cmd and its subcommands name the missing argument. cobra only counts: "accepts 1 arg(s),
// received 0".
func explainArguments(cmd *cobra.Command) {
	switch check := cmd.Args; {
	case cmd.HasParent() && cmd.HasSubCommands() && !cmd.Runnable():
		cmd.Args, cmd.RunE = cobra.ArbitraryArgs, onlySubcommands
	case cmd.Name() == "help":
		cmd.RunE = helpOf(cmd.Run)
	case check != nil:
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return argumentsFailure(cmd, args)
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		explainArguments(sub)
	}
}

// onlySubcommands runs a command that only has subcommands. cobra would print help for any argument and exit with 0.
func onlySubcommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var names []string
	for _, sub := range cmd.Commands() {
		names = append(names, cmd.CommandPath()+" "+sub.Name())
	}
	return usage("unknown command %q; want %s", cmd.CommandPath()+" "+args[0], words.Or(names))
}

// helpOf makes `extctl help VERB` fail if the verb does not exist. cobra's own help prints a message and exits with 0.
func helpOf(help func(*cobra.Command, []string)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if _, _, err := cmd.Root().Find(args); err != nil {
			return unknownVerb(cmd.Root(), args[0])
		}
		help(cmd, args)
		return nil
	}
}

// argumentsFailure reports a wrong number of arguments, with an example of a correct command line.
func argumentsFailure(cmd *cobra.Command, args []string) error {
	want, optional := wanted(cmd)
	line := strings.TrimSpace(cmd.Parent().CommandPath() + " " + cmd.Use)
	f := &failure{code: exitUsage, hint: "for example: " + exampleOf(cmd)}
	switch {
	case len(args) < len(want):
		f.err = fmt.Errorf("%s is missing: %s", want[len(args)], line)
	case len(want) == 0 && !optional:
		f.err, f.hint = fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args[0]), "see "+cmd.CommandPath()+" --help"
	default:
		f.err = fmt.Errorf("unexpected argument %q: %s", args[len(args)-1], line)
	}
	return f
}

// wanted reads cmd's usage line: the required arguments, and whether there are optional ones.
func wanted(cmd *cobra.Command) (required []string, optional bool) {
	for _, w := range strings.Fields(cmd.Use)[1:] {
		switch {
		case strings.HasPrefix(w, "-"): // a flag and its value end the arguments
			return required, optional
		case strings.HasPrefix(w, "[-"):
			if !strings.HasSuffix(w, "]") {
				return required, optional
			}
		case strings.HasPrefix(w, "["):
			return required, true
		default:
			required = append(required, strings.TrimSuffix(w, "…"))
		}
	}
	return required, optional
}

// exampleOf is a valid command line of cmd.
func exampleOf(cmd *cobra.Command) string {
	if first, _, _ := strings.Cut(strings.TrimSpace(cmd.Example), "\n"); first != "" {
		return first
	}
	out := []string{cmd.CommandPath()}
	required, _ := wanted(cmd)
	for _, r := range required {
		i := slices.IndexFunc(placeholders, func(p [2]string) bool { return p[0] == r })
		if i < 0 {
			return cmd.CommandPath() + " --help"
		}
		out = append(out, placeholders[i][1])
	}
	return strings.Join(out, " ")
}

// placeholders are the argument names in usage lines with an example value each.
var placeholders = [][2]string{{"ID", "hello"}, {"TOOL", "ext_hello_greet"}, {"BRIDGE", "web-1"}}

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
