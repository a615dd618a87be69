package gate

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const printEnv = "GATE_TEST_PRINT_ENV"

// TestMain runs the binary as a child that prints its environment, each variable ended by a zero byte.
func TestMain(m *testing.M) {
	if os.Getenv(printEnv) != "" {
		for _, kv := range os.Environ() {
			os.Stdout.WriteString(kv + "\x00")
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Each rule with a name that matches it and a similar name that does not.
var secretNames = []struct{ rule, secret, plain string }{
	{"_TOKEN", "GITHUB_TOKEN", "GITHUB_TOKENS"},
	{"_TOKEN", "_TOKEN", "TOKEN"},
	{"_TOKEN", "A_TOKEN", "A_TOKEN_FILE"},
	{"_KEY", "OPENAI_API_KEY", "MONKEY"},
	{"_KEY", "SIGNING_KEY", "SIGNING_KEY_ID"},
	{"_SECRET", "CLIENT_SECRET", "CLIENT_SECRE"},
	{"_PASSWORD", "DB_PASSWORD", "DB_PASSWOR"},
	{"_PASSWD", "DB_PASSWD", "PASSWD"},
	{"_PASSWD", "NEW_PASSWD", "NEW_PASSWD_FILE"},
	{"_PWD", "MYSQL_PWD", "PWD"},
	{"_PWD", "X_PWD", "OLDPWD"},
	{"_CREDENTIAL", "AWS_CREDENTIAL", "AWS_CREDENTIA"},
	{"_CREDENTIALS", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_APPLICATION"},
	{"_PAT", "AZURE_PAT", "AZURE_PATH"},
	{"_PAT", "X_PAT", "PAT"},
	{"_AUTH", "NPM_AUTH", "SSH_AUTH_SOCK"},
	{"_AUTH", "X_AUTH", "AUTH"},
	{"_APIKEY", "LLM_APIKEY", "APIKEY"},
	{"_APIKEY", "X_APIKEY", "X_APIKEY2"},
	{"_BEARER", "API_BEARER", "BEARER"},
	{"_BEARER", "X_BEARER", "FORBEARER"},
	{"_SESSION", "AWS_SESSION", "SESSION"},
	{"_SESSION", "X_SESSION", "SESSION_MANAGER"},
	{"PASSWORD", "PASSWORD", "PASSWOR"},
	{"PASSWORD", "PGPASSWORDFILE", "PGPASSFILE"},
	{"SECRET", "SECRETS_DIR", "SECRE_T"},
	{"CREDENTIAL", "CREDENTIALS_DIR", "CREDENT_DIR"},
	{"PRIVATE_KEY", "SSH_PRIVATE_KEY_PATH", "SSH_PUBLIC_KEY_PATH"},
	{"PRIVATE_KEY", "PRIVATE_KEY", "PRIVATEKEY"},
	{"case", "Github_Token", "Github_Tokens"},
	{"case", "my_db_password_file", "my_db_pass_file"},
	{"case", "npm_config__auth", "npm_config_author"},
	{"bytes", "\xff\xfe_TOKEN", "\xff\xfe"},
	{"none", "X_SECRET", "PATH"},
	{"none", "X_SECRET", "HOME"},
	{"none", "X_SECRET", ""},
}

func TestSecretLike(t *testing.T) {
	for _, tt := range secretNames {
		if !SecretLike(tt.secret) {
			t.Errorf("%s: %q does not look secret", tt.rule, tt.secret)
		}
		if SecretLike(tt.plain) {
			t.Errorf("%s: %q looks secret", tt.rule, tt.plain)
		}
	}
	for _, rule := range append(slices.Clone(secretSuffixes), secretSubstrings...) {
		n := 0
		for _, tt := range secretNames {
			if tt.rule == rule {
				n++
			}
		}
		if n == 0 {
			t.Errorf("no twins for %s", rule)
		}
	}
}

// variables are typical for a bridge's environment, each with the children that get it: all, only those with
// inherit_env: all, or only those with a manifest that declares it.
var variables = []struct{ entry, passes string }{
	{"PATH=/bin", "always"},
	{"HOME=/home/ada", "always"},
	{"LANG=C.UTF-8", "always"},
	{"LC_ALL=C.UTF-8", "always"},
	{"LC_TIME=de_DE", "always"},
	{"TZ=Europe/Rome", "always"},
	{"TMPDIR=/tmp", "always"},
	{"USER=ada", "always"},
	{"SHELL=/bin/sh", "always"},
	{"TERM=xterm", "always"},

	{"PWD=/srv", "inherited"},
	{"EDITOR=vi", "inherited"},
	{"GOPATH=/go", "inherited"},
	{"NODE_OPTIONS=--no-warnings", "inherited"},
	{"HTTP_PROXY=http://proxy:3128", "inherited"},
	{"NO_PROXY=localhost,10.0.0.0/8", "inherited"},
	{"API_URL=https://api.example.com/v1?to=a:b@c", "inherited"},
	{"REMOTE=ssh://git@example.com:22/repo", "inherited"},
	{"XDG_DATA_HOME=/home/ada/.local/share", "inherited"},
	{"DISPLAY=:0", "inherited"},
	{"LCX=1", "inherited"},
	{"PATHS=/x", "inherited"},

	{"NATS_URL=nats://nats:4222", "declared"},
	{"NATS_CREDS=/etc/bridge.creds", "declared"},
	{"NATS_CONTEXT=prod", "declared"},
	{"EXTMESH_GUARD=1", "declared"},
	{"XDG_CONFIG_HOME=/home/ada/.config", "declared"},
	{"SSH_AUTH_SOCK=/run/agent", "declared"},
	{"DBUS_SESSION_BUS_ADDRESS=unix:path=/run/bus", "declared"},
	{"DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/bus", "declared"},
	{"DOCKER_HOST=unix:///run/docker.sock", "declared"},
	{"DATABASE_URL=postgres://app:hunter22@db/app", "declared"},
	{"REPORTS_DSN=mysql://app:hunter22@db/app", "declared"},
	{"HTTPS_PROXY=http://ada:hunter22@proxy:3128", "declared"},
	{"CACHE=redis://:hunter22@cache:6379/0", "declared"},
	{"MESSAGES=nats://tokentoken@n1:4222,nats://n2:4222", "declared"},
	{"GITHUB_TOKEN=x", "declared"},
	{"AWS_SECRET_ACCESS_KEY=x", "declared"},
	{"OPENAI_API_KEY=x", "declared"},
	{"PGPASSWORD=x", "declared"},
}

func TestFortyVariables(t *testing.T) {
	if len(variables) != 40 {
		t.Errorf("there are %d variables", len(variables))
	}
	for _, v := range variables {
		name, _, _ := strings.Cut(v.entry, "=")
		for _, tt := range []struct {
			what string
			o    EnvOptions
			want bool
		}{
			{"inherit_env: all", EnvOptions{}, v.passes != "declared"},
			{"inherit_env: minimal", EnvOptions{Minimal: true}, v.passes == "always"},
			{"all, declared", EnvOptions{Allow: []string{name}}, true},
			{"minimal, declared", EnvOptions{Minimal: true, Allow: []string{name}}, true},
		} {
			env, stripped := childEnv([]string{v.entry}, tt.o, false)
			if have := slices.Contains(env, v.entry); have != tt.want {
				t.Errorf("%s: %s passes: %v, want %v", tt.what, name, have, tt.want)
			}
			if have, want := slices.Contains(stripped, name), v.passes == "declared" && !tt.want; have != want {
				t.Errorf("%s: %s is reported as withheld: %v, want %v", tt.what, name, have, want)
			}
		}
		set := EnvOptions{Minimal: true, Add: map[string]string{name: "own"}}
		if env, _ := childEnv([]string{v.entry}, set, false); !slices.Equal(env, []string{name + "=own"}) {
			t.Errorf("transport.env sets %s: %q", name, env)
		}
		secret := v.passes == "declared" && strings.Contains(v.entry, "://") && strings.Contains(v.entry, "@")
		if line := newRedactor([]string{v.entry}, nil, nil, false).Redact("dial " + v.entry); secret != (line == "dial "+name+"=["+name+"]") {
			t.Errorf("in a log: %s", line)
		}
	}
	env, _ := childEnv([]string{"SystemRoot=C:", "ComSpec=cmd", "=C:=C:", "Lc_All=C", "EDITOR=vi", "nats_url=nats://n"}, EnvOptions{Minimal: true}, true)
	if want := []string{"=C:=C:", "ComSpec=cmd", "Lc_All=C", "SystemRoot=C:"}; !slices.Equal(env, want) {
		t.Errorf("minimal on Windows: %q, want %q", env, want)
	}
}

func TestEnv(t *testing.T) {
	for _, tt := range []struct {
		name     string
		parent   []string
		o        EnvOptions
		windows  bool
		env      []string
		stripped []string
	}{
		{name: "empty"},
		{name: "plain passes, secret does not",
			parent: []string{"PATH=/bin", "API_TOKEN=t", "HOME=/root", "DB_PASSWORD="},
			env:    []string{"HOME=/root", "PATH=/bin"}, stripped: []string{"API_TOKEN", "DB_PASSWORD"}},
		{name: "required passes",
			parent: []string{"API_TOKEN=t", "DB_PASSWORD=p"}, o: EnvOptions{Allow: []string{"API_TOKEN", "UNSET_TOKEN"}},
			env: []string{"API_TOKEN=t"}, stripped: []string{"DB_PASSWORD"}},
		{name: "required by another name does not",
			parent: []string{"API_TOKEN=t"}, o: EnvOptions{Allow: []string{"api_token", "API", "API_TOKENS"}},
			stripped: []string{"API_TOKEN"}},
		{name: "Windows: names have no case", windows: true,
			parent: []string{"Path=a", "Api_Token=t", "Db_Password=p"},
			o:      EnvOptions{Allow: []string{"API_TOKEN"}, Add: map[string]string{"PATH": "b"}},
			env:    []string{"Api_Token=t", "PATH=b"}, stripped: []string{"Db_Password"}},
		{name: "elsewhere they have",
			parent: []string{"Path=a"}, o: EnvOptions{Add: map[string]string{"PATH": "b"}}, env: []string{"PATH=b", "Path=a"}},
		{name: "Windows: drives' directories", windows: true,
			parent: []string{`=C:=C:\x`, "A=1"}, env: []string{`=C:=C:\x`, "A=1"}},
		{name: "add wins",
			parent: []string{"A=1", "API_TOKEN=t"},
			o:      EnvOptions{Add: map[string]string{"A": "2", "B": "", "API_TOKEN": "mine", "C": "x=y"}},
			env:    []string{"A=2", "API_TOKEN=mine", "B=", "C=x=y"}},
		{name: "version, id and state directory",
			parent: []string{"AGENT_VERSION=old", "AGENT_EXTENSION_ID=parent", "EXTMESH_STATE_DIR=/old"},
			o:      EnvOptions{AgentVersion: "1.2.3", ExtensionID: "google.gmail", StateDir: "/state/google.gmail"},
			env:    []string{"AGENT_EXTENSION_ID=google.gmail", "AGENT_VERSION=1.2.3", "EXTMESH_STATE_DIR=/state/google.gmail"}},
		{name: "version, id and state directory of the parent do not pass",
			parent: []string{"AGENT_VERSION=old", "AGENT_EXTENSION_ID=parent", "EXTMESH_STATE_DIR=/old"}},
		{name: "add overrides version, id and state directory",
			o:   EnvOptions{ExtensionID: "a", Add: map[string]string{"AGENT_EXTENSION_ID": "b"}},
			env: []string{"AGENT_EXTENSION_ID=b"}},
		{name: "the last of a name counts",
			parent: []string{"A=1", "A=2", "X_KEY=1", "X_KEY=2"}, env: []string{"A=2"}, stripped: []string{"X_KEY"}},
		{name: "the last of a name counts, harmless or not",
			parent: []string{"A=1", "A=x://u:secret@h", "B=x://u:secret@h", "B=1"}, env: []string{"B=1"}, stripped: []string{"A"}},
		{name: "bytes survive",
			parent: []string{"A=\xff\xfe", "\xff=\x80", "B=a\nb"}, env: []string{"A=\xff\xfe", "B=a\nb", "\xff=\x80"}},
		{name: "not variables",
			parent: []string{"", "=", "s3cret", "=x", "A=="}, env: []string{"A=="}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check := func(order string) {
				t.Helper()
				env, stripped := childEnv(tt.parent, tt.o, tt.windows)
				if !slices.Equal(env, tt.env) || !slices.Equal(stripped, tt.stripped) {
					t.Errorf("%s:\nhave %q\nwant %q\nstripped %q\n    want %q", order, env, tt.env, stripped, tt.stripped)
				}
			}
			check("in order")
			if !strings.HasPrefix(tt.name, "the last of a name counts") {
				tt.parent = slices.Clone(tt.parent)
				slices.Reverse(tt.parent)
				check("reversed")
			}
		})
	}
}

// A real child receives exactly the environment that Env returns.
func TestEnvOfChild(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("environments are UTF-16 there")
	}
	t.Setenv("GATE_PLAIN", "caf\xe9")
	t.Setenv("GATE_TOKEN", "tok\xff123")
	t.Setenv("GATE_PASSWORD", "hunter2hunter2")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(allow ...string) (env []string) {
		cmd := exec.Command(exe)
		cmd.Env, _ = Env(os.Environ(), EnvOptions{
			Allow: allow, Add: map[string]string{printEnv: "1"}, ExtensionID: "weather", AgentVersion: "1.0.0", StateDir: t.TempDir(),
		})
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(string(out), "\x00")
	}
	for _, tt := range []struct {
		allow     []string
		has, lack []string
	}{
		{nil, []string{"GATE_PLAIN=caf\xe9", "AGENT_EXTENSION_ID=weather", "AGENT_VERSION=1.0.0"}, []string{"GATE_TOKEN=", "GATE_PASSWORD="}},
		{[]string{"GATE_TOKEN"}, []string{"GATE_PLAIN=caf\xe9", "GATE_TOKEN=tok\xff123"}, []string{"GATE_PASSWORD="}},
	} {
		env := run(tt.allow...)
		for _, kv := range tt.has {
			if !slices.Contains(env, kv) {
				t.Errorf("requires.env %q: the child lacks %q", tt.allow, kv)
			}
		}
		for _, name := range tt.lack {
			if slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name) }) {
				t.Errorf("requires.env %q: the child has %s", tt.allow, name)
			}
		}
	}
}

func TestMakeStateDir(t *testing.T) {
	base := filepath.Join(t.TempDir(), "new", "state")
	for range 2 { // made, then found
		dir, err := MakeStateDir(base, "google.gmail")
		if err != nil || dir != filepath.Join(base, "google.gmail") {
			t.Fatal(dir, err)
		}
		for _, d := range []string{dir, base} {
			st, err := os.Stat(d)
			if err != nil || !st.IsDir() || runtime.GOOS != "windows" && st.Mode().Perm() != 0o700 {
				t.Fatal(d, st, err)
			}
		}
	}
	for _, id := range []string{"", ".", "..", "../x", "a/b", `a\b`, "/etc"} {
		if dir, err := MakeStateDir(base, id); err == nil {
			t.Errorf("%q made %s", id, dir)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := MakeStateDir(file, "a"); err == nil || !strings.Contains(err.Error(), "state directory of a") {
		t.Errorf("below a file: %v", err)
	}
	t.Chdir(filepath.Dir(base))
	if dir, err := MakeStateDir("rel", "a"); err != nil || !filepath.IsAbs(dir) {
		t.Errorf("relative base: %s, %v", dir, err)
	}
}

// No string that this package produces contains a value.
func TestNoValueIsShown(t *testing.T) {
	const value = "v4lue-of-a-secret"
	parent := []string{"A_TOKEN=" + value, value, "=" + value, "PLAIN=" + value}
	_, stripped := Env(parent, EnvOptions{Add: map[string]string{"B": value}})
	if s := strings.Join(stripped, " "); strings.Contains(s, value) {
		t.Error(s)
	}
	var out bytes.Buffer
	out.WriteString(NewRedactor(parent, []string{"PLAIN"}, nil).Redact("x " + value))
	if strings.Contains(out.String(), value) {
		t.Error(out.String())
	}
}
