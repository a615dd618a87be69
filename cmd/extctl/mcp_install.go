package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/bridge"
	"github.com/extmesh/extmesh/internal/clients"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/gate"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
)

// clientFlags are the flags of mcp install and uninstall.
type clientFlags struct {
	name, scope, url, tokenVar string
	dryRun                     bool
}

// defaultEntry is the name of the mesh's entry in a client's file.
const defaultEntry = "mesh"

func (f *clientFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.name, "name", defaultEntry, "`NAME` of the entry")
	cmd.Flags().StringVar(&f.scope, "scope", string(clients.User), "which `FILE` of the client: user, or project for the one in this directory")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "print the change and write nothing")
}

func mcpInstallCmd(a *app) *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use:   "install CLIENT… [-- ARG…]",
		Short: "Put the entry for this MCP server into clients' files",
		Long: `Put an entry for this mesh into the file in which an MCP client configures its servers. Arguments after -- are
those of extctl mcp. Only the entry changes in the file; extctl mcp uninstall restores the file byte for byte.

CLIENT is one of ` + strings.Join(clients.Names(), ", ") + ".",
		Example: "  extctl mcp install cursor --dry-run\n  extctl mcp install claude-code codex -- --only 'github*'\n  extctl mcp install vscode --http http://127.0.0.1:7331/mcp",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var own []string
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args, own = args[:n], args[n:]
			}
			if len(args) == 0 {
				return usage("name a client before --: one of %s", strings.Join(clients.Names(), ", "))
			}
			return eachClient(a, f, args, func(e clients.Env, s clients.Setup) (out clients.Installed, err error) {
				if s.Entry, err = meshEntry(a, f, own); err != nil {
					return out, err
				}
				return e.Install(s)
			})
		},
		ValidArgsFunction: completeClients,
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.url, "http", "", "use the server of extctl mcp --http at `URL` instead of starting one")
	cmd.Flags().StringVar(&f.tokenVar, "token-env", "", "with --http: the `VARIABLE` that has the client's bearer token")
	return cmd
}

func mcpUninstallCmd(a *app) *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use:   "uninstall CLIENT…",
		Short: "Take the entry for this MCP server out of clients' files",
		Long: `Undo extctl mcp install: restore the client's file byte for byte or, if it was changed since, take out only the entry.

CLIENT is one of ` + strings.Join(clients.Names(), ", ") + ".",
		Example: "  extctl mcp uninstall cursor",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return eachClient(a, f, args, clients.Env.Uninstall)
		},
		ValidArgsFunction: completeClients,
	}
	f.add(cmd)
	return cmd
}

func completeClients(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return clients.Names(), cobra.ShellCompDirectiveNoFileComp
}

// clientEnv is where the clients' files are.
func (a *app) clientEnv() (clients.Env, error) {
	e := clients.Env{State: filepath.Join(filepath.Dir(bridge.DefaultStateDir()), "clients"), Getenv: a.getenv}
	var err, errConfig, errDir error
	if e.Home, err = os.UserHomeDir(); err != nil {
		return e, fail(exitOther, "the files of MCP clients are in the home directory: %w", err).with("set HOME (on Windows USERPROFILE) to your home directory", nil)
	}
	e.Config, errConfig = os.UserConfigDir()
	e.Dir, errDir = os.Getwd()
	return e, errors.Join(errConfig, errDir)
}

// findClient returns the client with a name.
func findClient(name string) (clients.Client, error) {
	c, ok := clients.Find(name)
	if !ok {
		f := fail(exitUsage, "there is no client %q", name).with("the clients are "+strings.Join(clients.Names(), ", "), nil)
		f.suggest(name, clients.Names())
		return c, f
	}
	return c, nil
}

// eachClient installs or uninstalls the entry for each client, and prints what was done.
func eachClient(a *app, f clientFlags, names []string, do func(clients.Env, clients.Setup) (clients.Installed, error)) error {
	if f.scope != string(clients.User) && f.scope != string(clients.Project) {
		return usage("--scope %q: want user or project", f.scope)
	}
	if f.tokenVar != "" && f.url == "" {
		return usage("--token-env needs --http URL")
	}
	e, err := a.clientEnv()
	if err != nil {
		return err
	}
	var setups []clients.Setup
	for _, name := range names {
		c, err := findClient(name)
		if err != nil {
			return err
		}
		setups = append(setups, clients.Setup{Client: c, Scope: clients.Scope(f.scope), Name: f.name, DryRun: f.dryRun})
	}
	changes := []clients.Installed{}
	for _, s := range setups {
		out, err := do(e, s)
		if err != nil {
			err = clientFailure(err)
			if f, ok := errors.AsType[*failure](err); ok && len(changes) > 0 {
				f.data = map[string]any{"changes": changes}
			}
			return err
		}
		changes = append(changes, out)
		if !a.json {
			printInstalled(a, e, s, out)
		}
	}
	if a.json {
		return a.printObject(member{"changes", changes}, member{"dry_run", f.dryRun})
	}
	return nil
}

// clientFailure adds the exit code and what to do.
func clientFailure(err error) error {
	if as[*failure](err) || as[daemon.UsageError](err) {
		return err
	}
	f := fail(exitConfigWrite, "%w", err)
	if as[*clients.ExistsError](err) {
		f.code, f.hint = exitExists, "its file was not changed; choose another name with --name"
	}
	if e, ok := errors.AsType[*clients.EditError](err); ok && e.Lines != "" {
		f.hint = "its file was not changed; add this by hand:\n" + e.Lines
	}
	return f
}

func printInstalled(a *app, e clients.Env, s clients.Setup, out clients.Installed) {
	text := fmt.Sprintf("%s: %s %s", e.Short(out.Path), out.Action, out.Key)
	if s.DryRun {
		text = "dry run, nothing was changed: " + text
	}
	fmt.Fprintln(a.stdout, terminal.Clean(text))
	if out.Action == "unchanged" {
		return
	}
	for line := range strings.Lines(out.Entry) {
		fmt.Fprintln(a.stdout, "  + "+terminal.Clean(strings.TrimRight(line, "\n")))
	}
	if !s.DryRun && out.Entry != "" {
		a.note("next: %s", s.Client.Next)
		undo := "extctl mcp uninstall " + s.Client.Name
		if s.Scope != clients.User {
			undo += " --scope " + string(s.Scope)
		}
		if s.Name != defaultEntry {
			undo += " --name " + terminal.ShellWord(s.Name)
		}
		a.note("undo: %s", undo)
	}
}

// meshEntry is the entry that starts this program, with the flags by which it finds the mesh. Credentials are not written.
func meshEntry(a *app, f clientFlags, args []string) (clients.Entry, error) {
	if f.url != "" {
		if len(args) > 0 {
			return clients.Entry{}, usage("--http URL: the arguments after -- are for a server that the client starts; give them to the server at the URL, whose profiles have URLs of their own")
		}
		if gate.HoldsPassword(f.url) {
			return clients.Entry{}, usage("--http has a password, which would be readable in the client's file; use --token-env")
		}
		if u, err := url.Parse(f.url); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return clients.Entry{}, usage("--http %q: want the URL that extctl mcp --http prints, such as http://127.0.0.1:7331/mcp", f.url)
		}
		return clients.Entry{URL: f.url, TokenVar: f.tokenVar}, nil
	}
	self, err := ownPath()
	if err != nil {
		return clients.Entry{}, err
	}
	if slices.ContainsFunc(args, gate.HoldsPassword) || slices.ContainsFunc(servers(args), holdsPassword) {
		return clients.Entry{}, usage("an argument after -- has a password, which would be readable in the client's file; use --context or --creds")
	}
	args = slices.Clone(args)
	if err := absolutePaths(args); err != nil {
		return clients.Entry{}, err
	}
	for _, flag := range []struct {
		name, value string
		isFile      bool
	}{
		{"--server", a.nats.Server, false}, {"--context", a.nats.Context, false},
		{"--creds", a.nats.Creds, true}, {"--nkey", a.nats.NKey, true}, {"--tlscert", a.nats.TLSCert, true},
		{"--tlskey", a.nats.TLSKey, true}, {"--tlsca", a.nats.TLSCA, true}, {"--inbox-prefix", a.nats.InboxPrefix, false},
	} {
		if gate.HoldsPassword(flag.value) || flag.name == "--server" && holdsPassword(flag.value) {
			return clients.Entry{}, usage("%s has a password, which would be readable in the client's file; use --context or --creds", flag.name)
		}
		if flag.isFile && flag.value != "" {
			if flag.value, err = filepath.Abs(flag.value); err != nil {
				return clients.Entry{}, err
			}
		}
		if flag.value != "" {
			args = append(args, flag.name, flag.value)
		}
	}
	if a.nats.Prefix != wire.DefaultPrefix {
		args = append(args, "--prefix", a.nats.Prefix)
	}
	if t, err := a.nats.Resolve(); err == nil && t.Source == "NATS_URL" && !t.IsUp() && !choosesMesh(args) {
		if address := os.Getenv("NATS_URL"); !gate.HoldsPassword(address) && !holdsPassword(address) {
			args = append(args, "--server", address)
		} else {
			a.note("extctl: warning: most clients do not pass on NATS_URL, whose password cannot be written into their files; use --context or --creds")
		}
	}
	if dir := os.Getenv("XDG_DATA_HOME"); dir != "" && !sameDefault(dir) && !choosesMesh(args) {
		a.note("extctl: warning: XDG_DATA_HOME is %s, where extctl up keeps its address and password; the client must set it, too, or it gets no tools of that mesh", terminal.ShellWord(dir))
	}
	return clients.Entry{Command: self, Args: args}, nil
}

// sameDefault reports whether a directory is the default of XDG_DATA_HOME on this system.
func sameDefault(dir string) bool {
	home, err := os.UserHomeDir()
	return err == nil && runtime.GOOS == "linux" && filepath.Clean(dir) == filepath.Join(home, ".local", "share")
}

// choosesMesh reports whether arguments of extctl mcp name the mesh that it uses.
func choosesMesh(args []string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		flag, _, _ := strings.Cut(arg, "=")
		return slices.Contains([]string{"--server", "-s", "--context", "--up"}, flag)
	})
}

// holdsPassword reports whether one of the addresses of --server, which need no scheme, has a password.
func holdsPassword(addresses string) bool {
	for address := range strings.SplitSeq(addresses, ",") {
		if !strings.Contains(address, "://") && gate.HoldsPassword("nats://"+address) {
			return true
		}
	}
	return false
}

// servers returns the values of --server in args.
func servers(args []string) (values []string) {
	for i, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--server="); ok {
			values = append(values, value)
		} else if arg == "--server" && i+1 < len(args) {
			values = append(values, args[i+1])
		}
	}
	return values
}

// absolutePaths makes the values of the flags that name files and directories absolute: a client starts the server in a
// directory of its own.
func absolutePaths(args []string) (err error) {
	for i := range args {
		name, value, joined := strings.Cut(args[i], "=")
		if !slices.Contains([]string{"--up", "--profiles", "--tokens", "--creds", "--nkey", "--tlscert", "--tlskey", "--tlsca"}, name) {
			continue
		}
		switch {
		case joined:
			if value, err = filepath.Abs(value); err == nil {
				args[i] = name + "=" + value
			}
		case i+1 < len(args):
			args[i+1], err = filepath.Abs(args[i+1])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ownPath is the absolute path of this program, as it was called: a package manager's link stays valid after an upgrade.
func ownPath() (string, error) {
	self, err := exec.LookPath(os.Args[0])
	if err == nil {
		self, err = filepath.Abs(self)
	}
	if err != nil {
		self, err = os.Executable()
	}
	if err == nil && strings.Contains(self, "go-build") {
		return "", fail(exitUsage, "go run deletes %s when it ends, so a client could not start it", self).
			with("go install ./cmd/extctl, and use that", nil)
	}
	return self, err
}

func mcpClientsCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "clients",
		Short:   "List the MCP clients of this machine and their servers",
		Long:    "List the MCP clients whose files or directories exist here, whether they have an entry for the mesh, and the names of their other servers.",
		Example: "  extctl mcp clients",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			e, err := a.clientEnv()
			if err != nil {
				return err
			}
			states := e.States()
			if a.json {
				return a.printObject(member{"clients", states})
			}
			for _, s := range states {
				if !s.Found {
					continue
				}
				if _, err := fmt.Fprintln(a.stdout, terminal.Clean(describeClient(e, s))); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func describeClient(e clients.Env, s clients.State) string {
	text := fmt.Sprintf("%-15s %s: ", s.Client, e.Short(s.Path))
	switch {
	case s.Error != "":
		return text + s.Error
	case s.Mesh != "":
		text += "has the entry " + s.Mesh
	default:
		text += "has no entry for the mesh"
	}
	if len(s.Others) > 0 {
		text += fmt.Sprintf(", and %s: %s", words.Plural(len(s.Others), "other server"), strings.Join(s.Others, ", "))
	}
	return text
}
