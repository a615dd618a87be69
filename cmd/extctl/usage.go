package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/nearest"
)

// usageFailure makes what cobra says of a command line an error and a hint.
func usageFailure(verb string, err error) error {
	if as[*failure](err) {
		return err
	}
	message, suggested, _ := strings.Cut(err.Error(), "\n\nDid you mean this?\n")
	f := fail(exitUsage, "%s", message)
	if words := strings.Fields(suggested); len(words) > 0 {
		f.hint = "did you mean " + orList(words) + "?"
	} else {
		f.hint = "see " + verb + " --help"
	}
	return f
}

// flagNames finds the names in a list of flags as --help has it.
var flagNames = regexp.MustCompile(`(?m)^\s+(?:-\w, )?--([a-z-]+)`)

// flagFailure says of an unknown flag which one may have been meant.
func flagFailure(cmd *cobra.Command, err error) error {
	// pflag's *NotExistError, whose module is not ours to import.
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
	f := fail(exitUsage, "%w", err)
	f.hint = "see " + cmd.CommandPath() + " --help"
	if strings.HasPrefix(err.Error(), "flag needs an argument") { // it is known, and only lacks its value
		return f
	}
	if near := nearest.Words(unknown.GetSpecifiedName(), known); len(near) > 0 {
		f.hint = "did you mean --" + strings.Join(near, " or --") + "?"
	}
	return f
}

// explainArguments makes cmd, and what is below it, say which argument is missing. cobra only counts: "accepts 1
// arg(s), received 0".
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

// onlySubcommands runs a verb that only has others below it. cobra prints its help whatever else stands on the line, and
// calls that a success.
func onlySubcommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var names []string
	for _, sub := range cmd.Commands() {
		names = append(names, cmd.CommandPath()+" "+sub.Name())
	}
	return usage("there is no %q; want %s", cmd.CommandPath()+" "+args[0], orList(names))
}

// helpOf makes help, cobra's, say that there is no such verb. It prints that with its own, and calls it a success.
func helpOf(help func(*cobra.Command, []string)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if _, _, err := cmd.Root().Find(args); err != nil {
			return usageFailure(cmd.Root().CommandPath(), err)
		}
		help(cmd, args)
		return nil
	}
}

// argumentsFailure says what is wrong with the number of arguments, and gives an example of what would be right.
func argumentsFailure(cmd *cobra.Command, args []string) error {
	want, optional := wanted(cmd)
	line := strings.TrimSpace(cmd.Parent().CommandPath() + " " + cmd.Use)
	f := &failure{code: exitUsage, hint: "for example: " + exampleOf(cmd)}
	switch {
	case len(args) < len(want):
		f.err = fmt.Errorf("%s is missing: %s", want[len(args)], line)
	case len(want) == 0 && !optional:
		f.err, f.hint = fmt.Errorf("%s takes no argument, and %q is one", cmd.CommandPath(), args[0]), "see "+cmd.CommandPath()+" --help"
	default:
		f.err = fmt.Errorf("%q is one argument too many: %s", args[len(args)-1], line)
	}
	return f
}

// wanted are the arguments that cmd's usage line says are needed, and whether there are others that it may have.
func wanted(cmd *cobra.Command) (required []string, optional bool) {
	for _, w := range strings.Fields(cmd.Use)[1:] {
		switch {
		case strings.HasPrefix(w, "-"): // a flag, with its value
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

// exampleOf is a command line that works, or would if there were such an extension.
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

// placeholders are the names of arguments in usage lines, and what stands for them in an example.
var placeholders = [][2]string{{"ID", "hello"}, {"TOOL", "ext_hello_greet"}, {"BRIDGE", "web-1"}}
