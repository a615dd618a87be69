package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/daemon"
)

// app is one run of extctl: its streams and the flags that all commands have.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string

	nats    daemon.NATSFlags
	json    bool
	yaml    bool // JSON is printed as YAML
	timeout time.Duration
	verb    string   // the command path as typed, for hints: extctl call
	line    []string // the arguments of extctl
}

// verbs are the commands, in the groups of the help text.
var verbs = []struct {
	group string
	make  func(*app) *cobra.Command
}{
	{"mesh", upCmd},
	{"mesh", urlCmd},
	{"mesh", statusCmd},
	{"mesh", listCmd},
	{"mesh", showCmd},
	{"mesh", toolsCmd},
	{"mesh", toolCmd},
	{"mesh", callCmd},
	{"mesh", watchCmd},
	{"mesh", waitCmd},
	{"mesh", pingCmd},
	{"mesh", hostsCmd},
	{"mesh", hooksCmd},
	{"mesh", skillsCmd},
	{"mesh", hookCmd},
	{"mesh", benchCmd},
	{"mesh", mcpCmd},
	{"operate", restartCmd},
	{"operate", drainCmd},
	{"operate", undrainCmd},
	{"operate", reloadCmd},
	{"operate", logsCmd},
	{"operate", eventsCmd},
	{"operate", callsCmd},
	{"operate", tapCmd},
	{"operate", statsCmd},
	{"operate", topCmd},
	{"operate", forgetCmd},
	{"local", discoverCmd},
	{"local", infoCmd},
	{"local", validateCmd},
	{"local", doctorCmd},
	{"local", enableCmd},
	{"local", disableCmd},
	{"local", installCmd},
	{"local", uninstallCmd},
	{"local", importCmd},
	{"local", newCmd},
	{"local", schemaCmd},
	{"local", versionCmd},
}

// run is extctl, from arguments to exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, getenv: getenv, line: args}
	root := rootCmd(a)
	started := false // cobra's own errors are all usage errors; they occur before the command starts
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	a.verb = cmd.CommandPath()
	if err != nil && !a.json { // it may have stopped the command before it had read the format
		readFormat(a, args)
	}
	if err != nil && !started {
		if m := unknownCommand.FindStringSubmatch(err.Error()); m != nil && cmd == root {
			err = unknownVerb(root, m[1])
		} else {
			err = usageFailure(a.verb, err)
		}
	}
	return a.exit(ctx, err)
}

// machineFormat matches the arguments, one on each line, that select a format in which errors are printed, too.
var machineFormat = regexp.MustCompile(`(?m)^(?:--json|(?:-o[=\n]?|--output[=\n])(json|yaml))$`)

// readFormat finds the format of the output in a command line that could not be parsed.
func readFormat(a *app, line []string) {
	if end := slices.Index(line, "--"); end >= 0 {
		line = line[:end]
	}
	if m := machineFormat.FindStringSubmatch(strings.Join(line, "\n")); m != nil {
		a.json, a.yaml = true, m[1] == string(formatYAML)
	}
}

func init() { cobra.EnableCommandSorting = false } // help lists the verbs in the order above; cobra has no setting per command

func rootCmd(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "extctl",
		Short:         "Show the extensions of a mesh, call their tools, and run a mesh",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	fs := flag.NewFlagSet("extctl", flag.ContinueOnError)
	a.nats.AddFlags(fs)
	root.PersistentFlags().AddGoFlagSet(fs)
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print one JSON object (docs/extctl.md has the shapes)")
	root.PersistentFlags().DurationVar(&a.timeout, "timeout", 0, "give up after `DURATION`, e.g. 2s; each command has its own default")
	root.AddGroup(&cobra.Group{ID: "mesh", Title: "The mesh:"}, &cobra.Group{ID: "operate", Title: "Operate:"},
		&cobra.Group{ID: "local", Title: "Local:"})
	for _, v := range verbs {
		cmd := v.make(a)
		cmd.GroupID = v.group
		root.AddCommand(cmd)
	}
	root.SetCompletionCommandGroupID("local")
	root.InitDefaultCompletionCmd()
	root.SetHelpCommandGroupID("local")
	root.InitDefaultHelpCmd()
	explainArguments(root)
	completeFlags(a, root)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return flagFailure(cmd, a.line, err) })
	root.Version = daemon.Version()
	root.SetVersionTemplate("extctl {{.Version}}\n")
	return root
}

func versionCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.printObject(member{"version", daemon.Version()}, member{"go", runtime.Version()})
			}
			_, err := fmt.Fprintln(a.stdout, "extctl", daemon.Version())
			return err
		},
	}
}
