package gate

import (
	"maps"
	"runtime"
	"slices"
	"strings"
)

// The parts of a name that make a variable look secret. The rules are part of the contract and apply literally, so
// that an operator can decide from the name alone: TOKEN passes, and so does PWD.
var (
	secretSuffixes = []string{
		"_TOKEN", "_KEY", "_SECRET", "_PASSWORD", "_PASSWD", "_PWD", "_CREDENTIAL", "_CREDENTIALS",
		"_PAT", "_AUTH", "_APIKEY", "_BEARER", "_SESSION",
	}
	secretSubstrings = []string{"PASSWORD", "SECRET", "CREDENTIAL", "PRIVATE_KEY"}
)

// SecretLike reports whether the name of a variable looks secret: whether it ends in one of _TOKEN _KEY _SECRET
// _PASSWORD _PASSWD _PWD _CREDENTIAL _CREDENTIALS _PAT _AUTH _APIKEY _BEARER _SESSION or contains PASSWORD,
// SECRET, CREDENTIAL or PRIVATE_KEY, in upper or lower case.
func SecretLike(name string) bool {
	name = strings.ToUpper(name)
	return slices.ContainsFunc(secretSuffixes, func(s string) bool { return strings.HasSuffix(name, s) }) ||
		slices.ContainsFunc(secretSubstrings, func(s string) bool { return strings.Contains(name, s) })
}

// hostOnly lists the variables with which a process connects to services of the host: the NATS servers of the mesh and
// the contexts of the nats command, the user's SSH agent, D-Bus, Docker. The limits of Go's runtime are those of the bridge. A name
// that ends in "_" is a prefix.
var hostOnly = []string{"NATS_", "EXTMESH_", "XDG_CONFIG_HOME", "SSH_AUTH_SOCK", "DBUS_", "DOCKER_HOST", "GOMAXPROCS", "GOGC", "GOMEMLIMIT"}

// basic lists the variables that a child receives with inherit_env: minimal: only what nearly every program needs. A
// name that ends in "_" is a prefix.
var (
	basic        = []string{"PATH", "HOME", "LANG", "LC_", "TZ", "TMPDIR", "USER", "SHELL", "TERM"}
	basicWindows = []string{"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERNAME",
		"USERPROFILE", "HOMEDRIVE", "HOMEPATH", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES"}
)

// matches reports whether name is one of names, or begins with one of them that ends in "_".
func matches(name string, names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		return name == n || strings.HasSuffix(n, "_") && strings.HasPrefix(name, n)
	})
}

// Basic reports whether every child gets the variable name, also with inherit_env: minimal.
func Basic(name string) bool { return isBasic(name, runtime.GOOS == "windows") }

func isBasic(name string, windows bool) bool {
	if !windows {
		return matches(name, basic)
	}
	return matches(strings.ToUpper(name), slices.Concat(basic, basicWindows)) || strings.HasPrefix(name, "=")
}

// Withheld reports whether a child gets the variable only if its manifest declares it, even with inherit_env: all.
func Withheld(name, value string) bool {
	return SecretLike(name) || matches(strings.ToUpper(name), hostOnly) || HoldsPassword(value)
}

// The variables that describe a child's context.
const (
	agentVersion     = "AGENT_VERSION"
	agentExtensionID = "AGENT_EXTENSION_ID"
	stateDir         = "EXTMESH_STATE_DIR"
)

// EnvOptions describe how the environment of one child differs from the bridge's.
type EnvOptions struct {
	Minimal bool              // inherit_env: minimal; of parent only the basic variables and Allow pass
	Allow   []string          // requires.env: names that pass in any case
	Add     map[string]string // transport.env with its placeholders replaced; overrides everything else
	Mesh    Credentials       // variables that contain one of them do not pass, whatever their names

	AgentVersion string // AGENT_VERSION; "" leaves it unset
	ExtensionID  string // AGENT_EXTENSION_ID; "" leaves it unset
	StateDir     string // EXTMESH_STATE_DIR, of MakeStateDir; "" leaves it unset
}

// Env returns the environment of a child. It consists of
//
//   - parent (KEY=value, as in os.Environ; the last entry of a name counts). Unless o.Allow names them, it leaves out
//     variables with secret-like names, variables that give access to services of the host (NATS_*, SSH_AUTH_SOCK, …)
//     and values that contain an address with a password. With o.Minimal only the basic variables and o.Allow pass;
//   - AGENT_VERSION, AGENT_EXTENSION_ID and EXTMESH_STATE_DIR of o; those of parent never pass, they describe parent;
//   - o.Add.
//
// It is sorted by name. Names and values are bytes and pass unchanged, UTF-8 or not. Names are compared as the system
// compares them: on Windows without regard to case.
//
// stripped lists the names that were withheld as secret and not set by o.Add, sorted, for extctl doctor; never values.
// Names that only o.Minimal leaves out are not among them.
func Env(parent []string, o EnvOptions) (env, stripped []string) {
	return childEnv(parent, o, runtime.GOOS == "windows")
}

func childEnv(parent []string, o EnvOptions, fold bool) (env, stripped []string) {
	key := nameKey(fold)
	allowed := nameSet(o.Allow, key)
	pass, held := map[string]string{}, map[string]string{} // entries and names, by key
	for _, entry := range parent {
		name, value, ok := split(entry)
		if !ok {
			continue
		}
		k := key(name)
		delete(pass, k) // an earlier entry of this name may have had a harmless value
		delete(held, k)
		switch {
		case k == agentVersion || k == agentExtensionID || k == stateDir:
		case o.Mesh.in(value), Withheld(name, value) && !allowed[k]:
			held[k] = name
		case o.Minimal && !allowed[k] && !isBasic(name, fold):
		default:
			pass[k] = entry
		}
	}
	set := func(name, value string) {
		pass[key(name)] = name + "=" + value
		delete(held, key(name))
	}
	for _, own := range [][2]string{{agentVersion, o.AgentVersion}, {agentExtensionID, o.ExtensionID}, {stateDir, o.StateDir}} {
		if own[1] != "" {
			set(own[0], own[1])
		}
	}
	for _, name := range sortedKeys(o.Add) {
		set(name, o.Add[name])
	}
	for _, k := range sortedKeys(pass) {
		env = append(env, pass[k])
	}
	for _, k := range sortedKeys(held) {
		stripped = append(stripped, held[k])
	}
	return env, stripped
}

// nameKey returns a function that maps names that count as the same variable to one key.
func nameKey(fold bool) func(name string) string {
	if fold {
		return strings.ToUpper
	}
	return func(name string) string { return name }
}

func nameSet(names []string, key func(string) string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[key(name)] = true
	}
	return set
}

// split cuts an entry into name and value. An entry without a name or a "=" is not a variable: no program can look it
// up, and whether it is secret cannot be decided. On Windows the variables that hold the current directory of each
// drive have names that begin with "=".
func split(entry string) (name, value string, ok bool) {
	if entry == "" {
		return "", "", false
	}
	i := strings.IndexByte(entry[1:], '=') + 1
	if i == 0 {
		return "", "", false
	}
	return entry[:i], entry[i+1:], true
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
