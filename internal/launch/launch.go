// Package launch recognises commands that may download, install or compile a program before they run it, such as
// npx -y PACKAGE. Their first start takes minutes instead of seconds.
package launch

import (
	"path"
	"slices"
	"strings"
)

// always lists programs that install what they run, whatever their arguments are.
var always = []string{"npx", "pnpx", "bunx", "uvx"}

// subcommands lists programs of which only some subcommands install what they run.
var subcommands = map[string][]string{
	"npm":     {"exec", "x"},
	"pnpm":    {"dlx"},
	"yarn":    {"dlx"},
	"bun":     {"x"},
	"deno":    {"run"},
	"uv":      {"run", "tool run", "x"},
	"pipx":    {"run"},
	"docker":  {"run", "container run", "compose run"},
	"podman":  {"run", "container run", "compose run"},
	"nerdctl": {"run", "container run", "compose run"},
	"go":      {"run"},
	"cargo":   {"run"},
	"dotnet":  {"run", "tool run"},
	"nix":     {"run", "shell"},
}

// maxWrappers limits how many wrappers are unpacked, for example cmd /c env X=1 npx.
const maxWrappers = 4

// Downloads returns the usual name of the launcher that the command is, such as "npx" or "docker run",
// and "" if it is no launcher.
func Downloads(command string, args []string) string {
	words := append([]string{command}, args...)
	for range maxWrappers {
		inner := unwrap(words)
		if inner == nil {
			break
		}
		words = inner
	}
	if len(words) == 0 {
		return ""
	}
	name := program(words[0])
	if slices.Contains(always, name) {
		return name
	}
	called := strings.Join(operands(words[1:]), " ") + " "
	for _, sub := range subcommands[name] {
		if strings.HasPrefix(called, sub+" ") {
			return name + " " + sub
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

// valued lists options before a subcommand whose value is the next argument, as in uv --directory DIR run.
var valued = []string{
	"--directory", "--project", "--cache-dir", "--config-file", // uv
	"--host", "-H", "--context", "--config", "--log-level", "-l", "--file", "-f", // docker, docker compose
	"--prefix", "-C", "--dir", "--filter", "-F", "--workspace", "-w", "--cwd", // npm, pnpm, yarn, go, cargo
}

// operands returns the first two arguments that are neither options nor the values of those in valued. The value of
// another option may be among them, which at worst hides a launcher.
func operands(args []string) (out []string) {
	for i := 0; i < len(args) && len(out) < 2; i++ {
		switch {
		case slices.Contains(valued, args[i]):
			i++
		case !strings.HasPrefix(args[i], "-"):
			out = append(out, args[i])
		}
	}
	return out
}

// unwrap returns the command that a wrapper runs, as words, and nil if words is no wrapper.
func unwrap(words []string) []string {
	if len(words) < 2 {
		return nil
	}
	args := words[1:]
	switch program(words[0]) {
	case "cmd":
		for i, a := range args {
			if strings.EqualFold(a, "/c") {
				return args[i+1:]
			}
		}
	case "sh", "bash", "dash", "zsh":
		for i, a := range args {
			if strings.HasPrefix(a, "-") && strings.HasSuffix(a, "c") && i+1 < len(args) {
				return strings.Fields(strings.TrimPrefix(args[i+1], "exec "))
			}
		}
	case "env", "nice", "nohup", "time", "stdbuf":
		i := slices.IndexFunc(args, func(a string) bool { return !strings.HasPrefix(a, "-") && !strings.Contains(a, "=") })
		if i >= 0 {
			return args[i:]
		}
	}
	return nil
}
