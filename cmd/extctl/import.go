package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/extmesh/extmesh/internal/clients"
	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/natsd/storelock"
	"github.com/extmesh/extmesh/internal/terminal"
	"github.com/extmesh/extmesh/internal/words"
)

// importOptions are the flags of import.
type importOptions struct {
	hostFlags
	id, name              string
	replace, dryRun, undo bool
}

func importCmd(a *app) *cobra.Command {
	var o importOptions
	cmd := &cobra.Command{
		Use:   "import FILE|CLIENT…",
		Short: "Make an extension of the MCP servers in clients' files",
		Long: `Read the MCP servers from a FILE, from your file of a CLIENT, from those of all clients (all) or from standard input (-), and write
them to the extension <first search path>/imported. Values that look secret are moved to files which only you can read.

With --replace the mesh's own entry takes the place of the imported servers in the clients' files. --undo undoes the last
import; files that were not changed since are restored byte for byte.

CLIENT is one of ` + strings.Join(clients.Names(), ", ") + ".",
		Example: "  extctl import cursor --dry-run\n  extctl import all --replace\n  extctl import .vscode/mcp.json\n  extctl import --undo",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.undo {
				return undoImport(cmd.Context(), a, args)
			}
			return importServers(cmd.Context(), a, o, args)
		},
		ValidArgs: append(clients.Names(), "all"),
	}
	o.add(cmd)
	cmd.Flags().StringVar(&o.id, "id", "imported", "`ID` of the extension")
	cmd.Flags().StringVar(&o.name, "name", defaultEntry, "with --replace: `NAME` of the mesh's entry")
	cmd.Flags().BoolVar(&o.replace, "replace", false, "put the mesh's entry in the place of the imported servers in the clients' files")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "print what would be done and write nothing")
	cmd.Flags().BoolVar(&o.undo, "undo", false, "undo the last import")
	return cmd
}

// importJSON is the output of import.
type importJSON struct {
	header
	Servers  []clients.Imported `json:"servers"`
	Files    []string           `json:"files"`
	Replaced []clients.Replaced `json:"replaced"`
	Projects []string           `json:"project_files"` // left out, because their paths were not given
	DryRun   bool               `json:"dry_run"`
}

func importServers(ctx context.Context, a *app, o importOptions, args []string) error {
	if len(args) == 0 {
		return usage("want a file, a client, all or -; extctl mcp clients lists the clients of this machine")
	}
	h, err := a.loadConfig(o.hostFlags)
	if err != nil {
		return err
	}
	root, err := h.firstPath()
	if err != nil {
		return err
	}
	e, err := a.clientEnv()
	if err != nil {
		return err
	}
	sources, projects, err := importSources(ctx, a, e, args)
	if err != nil {
		return err
	}
	if !o.dryRun {
		unlock, err := lockImports(ctx, e)
		if err != nil {
			return err
		}
		defer unlock()
	}
	plan, err := e.PlanImport(filepath.Join(root, o.id), sources)
	if err != nil {
		return fail(exitUsage, "%w", err)
	}
	out := importJSON{Servers: list(plan.Servers), Files: list(plan.Files), Replaced: []clients.Replaced{}, Projects: list(projects), DryRun: o.dryRun}
	if o.replace {
		entry, err := meshEntry(a, clientFlags{}, nil)
		if err != nil {
			return err
		}
		if out.Replaced, err = plan.Replace(o.name, entry); err != nil {
			return clientFailure(err)
		}
	}
	if !o.dryRun {
		if err := plan.Apply(); err != nil {
			f := fail(exitConfigWrite, "%w", err)
			if !errors.Is(err, clients.ErrNotBegun) {
				f.hint = "extctl import --undo undoes what was done"
			}
			return f
		}
	}
	if a.json {
		return a.printJSON(out)
	}
	printImport(a, e, out, root)
	return nil
}

// lockImports waits until no other process imports.
func lockImports(ctx context.Context, e clients.Env) (unlock func(), err error) {
	if unlock, err = e.Lock(ctx); err != nil {
		return nil, cmp.Or(interrupted(ctx), error(fail(exitConfigWrite, "nothing was changed: %w", err)))
	}
	return unlock, nil
}

// importSources returns the sources that the arguments name. projects are the files of the project that were left out.
func importSources(ctx context.Context, a *app, e clients.Env, args []string) (sources []clients.Source, projects []string, err error) {
	own := func(c clients.Client) []clients.Source { // a stranger may have written the project's file
		return slices.DeleteFunc(e.Sources(c), func(s clients.Source) bool {
			if s.IsProjects() {
				projects = append(projects, s.Path)
				a.note("extctl: %s is of this project, and is not imported unless you give its path", terminal.Clean(s.Label))
			}
			return s.IsProjects()
		})
	}
	for _, arg := range args {
		c, isClient := clients.Find(arg)
		switch {
		case arg == "-":
			text, err := a.readStdin(ctx, 1<<20)
			if err != nil {
				return nil, nil, err
			}
			sources = append(sources, clients.Source{Label: "standard input", Text: string(text)})
		case arg == "all":
			for _, c := range clients.Clients {
				for _, s := range own(c) {
					s.Optional = true
					sources = append(sources, s)
				}
			}
		case isClient:
			found := own(c)
			if len(found) == 0 {
				path, _ := e.Path(c, clients.User)
				f := fail(exitNotFound, "%s has no file here: %s does not exist", c.Title, path)
				if len(projects) > 0 {
					f.hint = "the file of this project is imported by its path: " + terminal.Clean(projects[0])
				}
				return nil, nil, f
			}
			sources = append(sources, found...)
		default:
			if _, err := os.Lstat(arg); err != nil && !strings.ContainsAny(arg, `./\`) {
				_, err := findClient(arg)
				return nil, nil, err
			}
			sources = append(sources, e.Source(arg))
		}
	}
	return sources, projects, nil
}

// printImport prints what was done, or would be, like a diff: what is added, and what is taken out.
func printImport(a *app, e clients.Env, out importJSON, root string) {
	if out.DryRun {
		fmt.Fprintln(a.stdout, "dry run, nothing was changed:")
	}
	imported := 0
	for _, s := range out.Servers {
		if s.Target == "" {
			fmt.Fprintln(a.stdout, terminal.Clean(fmt.Sprintf("  %s in %s is not imported: %s", s.Name, s.Source, s.Skipped)))
			continue
		}
		imported++
		text := fmt.Sprintf("+ %s: %s, from %s", s.Target, s.Runs, s.Source)
		if s.Present {
			text = fmt.Sprintf("  %s is there already, from %s", s.Target, s.Source)
		}
		if s.Secrets > 0 {
			text += fmt.Sprintf("; %s moved to files", words.Plural(s.Secrets, "secret"))
		}
		if len(s.Needs) > 0 {
			text += "; needs " + strings.Join(s.Needs, ", ")
		}
		if len(s.Takes) > 0 {
			text += "; takes from this host: " + strings.Join(s.Takes, ", ")
		}
		for _, note := range s.Notes {
			text += "; " + note
		}
		fmt.Fprintln(a.stdout, terminal.Clean(text))
	}
	for _, f := range out.Files {
		fmt.Fprintln(a.stdout, terminal.Clean("+ "+e.Short(f)))
	}
	for _, r := range out.Replaced {
		fmt.Fprintln(a.stdout, terminal.Clean(fmt.Sprintf("- %s: %s; + %s", e.Short(r.Path), strings.Join(r.Removed, ", "), r.Added)))
	}
	fmt.Fprintf(a.stdout, "%d of %s imported\n", imported, words.Plural(len(out.Servers), "server"))
	if out.DryRun || len(out.Files)+len(out.Replaced) == 0 {
		return
	}
	if len(out.Files) > 0 {
		dir := terminal.ShellWord(e.Short(root))
		if _, running := storelock.Running(daemon.StoreDir("")); running {
			a.note("start them, unless extctl up runs %s already: extctl up --join %[1]s", dir)
		} else {
			a.note("start them: extctl up %s", dir)
		}
	}
	a.note("undo: extctl import --undo")
}

func undoImport(ctx context.Context, a *app, args []string) error {
	if len(args) > 0 {
		return usage("--undo undoes the last import and takes no arguments")
	}
	e, err := a.clientEnv()
	if err != nil {
		return err
	}
	unlock, err := lockImports(ctx, e)
	if err != nil {
		return err
	}
	defer unlock()
	done, incomplete := e.UndoImport()
	if incomplete != nil && len(done) == 0 {
		return fail(exitNotFound, "%w", incomplete)
	}
	if a.json {
		err := a.printObject(member{"undone", list(done)})
		if err == nil && incomplete != nil {
			err = silentError(exitOther) // the reasons are printed
		}
		return err
	}
	if len(done) == 0 {
		a.note("extctl: the last import had changed nothing")
	}
	for _, u := range done {
		text := fmt.Sprintf("%s: %s", e.Short(u.Path), u.Action)
		if u.Reason != "" {
			text += ": " + cmp.Or(u.Reason, "unknown")
		}
		fmt.Fprintln(a.stdout, terminal.Clean(text))
	}
	return incomplete
}
