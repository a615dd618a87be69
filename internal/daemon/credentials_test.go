package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const (
	testJWT  = "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.eyJqdGkiOiJ4In0.c2lnbmF0dXJl"
	testSeed = "SUAIBDPBAUTWCWBKIO6XHQNINK5FWJW4OHLXC3HQ2KFE4PEJUA44CNHTC4"
	creds    = "-----BEGIN NATS USER JWT-----\n" + testJWT + "\n------END NATS USER JWT------\n\n" +
		"************************* IMPORTANT *************************\nNKEY Seed printed below can be used to sign and prove identity.\n\n" +
		"-----BEGIN USER NKEY SEED-----\n" + testSeed + "\n------END USER NKEY SEED------\n"
)

// TestSecrets: the credentials are complete for every way to configure them.
func TestSecrets(t *testing.T) {
	home := emptyHome(t)
	credsFile, seedFile := filepath.Join(home, "bridge.creds"), filepath.Join(home, "seed")
	writeFile(t, credsFile, creds)
	writeFile(t, seedFile, testSeed+"\n")
	contexts := filepath.Join(home, "config", "nats", "context")
	writeFile(t, filepath.Join(contexts, "c.json"), `{"url":"nats://h:1","creds":"`+credsFile+`"}`)
	writeFile(t, filepath.Join(contexts, "p.json"), `{"url":"nats://h:1","user":"u","password":"context-password"}`)
	writeFile(t, filepath.Join(home, "elsewhere.json"), `{"url":"nats://h:1","nkey":"`+seedFile+`"}`)
	for name, tt := range map[string]struct {
		flags  NATSFlags
		values []string
		files  []string
	}{
		"URLs":             {NATSFlags{Server: "nats://u:p%40ss@h:1,nats://token@h:2"}, []string{"p@ss", "token"}, nil},
		"creds":            {NATSFlags{Server: "h", Creds: credsFile}, []string{testJWT, testSeed}, []string{credsFile}},
		"nkey":             {NATSFlags{Server: "h", NKey: seedFile}, []string{testSeed}, []string{seedFile}},
		"context, creds":   {NATSFlags{Context: "c"}, []string{testJWT, testSeed}, []string{filepath.Join(contexts, "c.json"), credsFile}},
		"context, pass":    {NATSFlags{Context: "p"}, []string{"context-password"}, []string{filepath.Join(contexts, "p.json")}},
		"context, by path": {NATSFlags{Context: filepath.Join(home, "elsewhere.json")}, []string{testSeed}, []string{filepath.Join(home, "elsewhere.json"), seedFile}},
		"none":             {NATSFlags{Server: "nats://h:1"}, nil, nil},
	} {
		for _, env := range []string{"", "nats://e:environment-password@h:3"} {
			os.Setenv("NATS_URL", env) // emptyHome restores it
			target, err := tt.flags.Resolve()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			want := tt.values
			if env != "" { // NATS_URL is a credential of the mesh even if a flag is used
				want = append(slices.Clone(want), "environment-password")
			}
			for _, v := range want {
				if !slices.Contains(target.Secrets.Values, v) {
					t.Errorf("%s: %q is not in %q", name, v, target.Secrets.Values)
				}
			}
			if name == "none" && len(target.Secrets.Values) != len(want) {
				t.Errorf("%s: %q", name, target.Secrets.Values)
			}
			if !slices.Equal(target.Secrets.Files, tt.files) {
				t.Errorf("%s: files %q, want %q", name, target.Secrets.Files, tt.files)
			}
		}
	}
}
