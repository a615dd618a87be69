package gate

import (
	"maps"
	"runtime"
	"slices"
	"strings"
)

// What makes a variable's name look secret. The rules are the contract's and are kept to the letter, so that
// an operator can tell from a name alone: a bare TOKEN passes, and so do SSH_AUTH_SOCK and PWD.
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

// The variables that tell a child where it is.
const (
	agentVersion     = "AGENT_VERSION"
	agentExtensionID = "AGENT_EXTENSION_ID"
	stateDir         = "EXTMESH_STATE_DIR"
)

// EnvOptions say what makes one child's environment differ from the bridge's.
type EnvOptions struct {
	Allow []string          // requires.env: names that pass although they look secret
	Add   map[string]string // transport.env with its placeholders replaced; beats everything else

	AgentVersion string // AGENT_VERSION; "" leaves it unset
	ExtensionID  string // AGENT_EXTENSION_ID; "" leaves it unset
	StateDir     string // EXTMESH_STATE_DIR, of MakeStateDir; "" leaves it unset
}

// Env is the environment of a child: parent (KEY=value, as of os.Environ; of a name that stands there twice the
// last counts) without the variables that look secret, unless o.Allow names them; with AGENT_VERSION,
// AGENT_EXTENSION_ID and EXTMESH_STATE_DIR, of which parent's own never pass, since they speak of somebody else;
// and with o.Add. It is sorted by name. Names and values are bytes and pass as they are, UTF-8 or not. Names are
// compared as the system compares them: on Windows without regard to case.
//
// stripped are the names that were held back and not set by o.Add, sorted, for extctl doctor; never values.
func Env(parent []string, o EnvOptions) (env, stripped []string) {
	return childEnv(parent, o, runtime.GOOS == "windows")
}

func childEnv(parent []string, o EnvOptions, fold bool) (env, stripped []string) {
	key := nameKey(fold)
	allowed := nameSet(o.Allow, key)
	pass, held := map[string]string{}, map[string]string{} // entries and names, by key
	for _, entry := range parent {
		name, _, ok := split(entry)
		if !ok {
			continue
		}
		k := key(name)
		switch {
		case k == agentVersion || k == agentExtensionID || k == stateDir:
		case SecretLike(name) && !allowed[k]:
			held[k] = name
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

// nameKey returns what makes two names the same.
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

// split cuts an entry into name and value. An entry without a name or a "=" is no variable: no program can ask
// for it, and whether it is secret cannot be told. A name may begin with "=", as those do in which Windows
// keeps the current directory of each drive.
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
