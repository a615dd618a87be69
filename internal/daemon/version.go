package daemon

import (
	"runtime/debug"
	"strings"
)

// version is set by release builds: -ldflags "-X github.com/extmesh/extmesh/internal/daemon.version=1.2.3".
var version string

// Version returns the program's version: the one set by the linker, else the module's version, else the commit it was
// built from, else "devel".
func Version() string {
	if version != "" {
		return strings.TrimPrefix(version, "v") // of a git tag
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	return buildVersion(info)
}

func buildVersion(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return strings.TrimPrefix(v, "v")
	}
	out := "devel"
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			out += "-" + s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			out += "+dirty"
		}
	}
	return out
}
