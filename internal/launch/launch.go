// Package launch recognises commands that may download, install or compile a program before they run it, such as
// npx -y PACKAGE. Their first start takes minutes instead of seconds.
package launch

import (
	"path"
	"slices"
	"strings"
)

// launchers are the programs that install what they run, with the subcommands that do it; without any, all do.
var launchers = map[string][]string{
	"npx": nil, "pnpx": nil, "bunx": nil, "uvx": nil,
	"npm": {"exec", "x"}, "pnpm": {"dlx"}, "yarn": {"dlx"}, "bun": {"x"}, "deno": {"run"},
	"uv": {"run", "x"}, "pipx": {"run"},
	"docker": {"run"}, "podman": {"run"}, "nerdctl": {"run"},
	"go": {"run"}, "cargo": {"run"}, "dotnet": {"run"}, "nix": {"run", "shell"},
}

// wrappers are programs that run the command in their arguments.
var wrappers = []string{"cmd", "env", "sh", "bash", "dash", "zsh", "nice", "nohup", "time", "stdbuf"}

// Downloads returns the usual name of the launcher that the command is, such as "npx" or "docker run", and "" if it is no
// launcher. What it takes for a launcher by mistake only has more time for its first start.
func Downloads(command string, args []string) string {
	words := append([]string{command}, args...)
	if slices.Contains(wrappers, program(command)) {
		words = strings.Fields(strings.Join(args, " "))
		words = words[max(0, slices.IndexFunc(words, func(w string) bool { _, ok := launchers[program(w)]; return ok })):]
	}
	if len(words) == 0 {
		return ""
	}
	name := program(words[0])
	subcommands, ok := launchers[name]
	if ok && subcommands == nil {
		return name
	}
	for _, w := range words[1:] {
		if slices.Contains(subcommands, w) {
			return name + " " + w
		}
	}
	return ""
}

// program returns the base name of a command, without the extension that it has on Windows.
func program(command string) string {
	name := strings.ToLower(path.Base(strings.ReplaceAll(command, `\`, "/")))
	for _, ext := range []string{".exe", ".cmd", ".bat", ".ps1"} {
		name = strings.TrimSuffix(name, ext)
	}
	return name
}
