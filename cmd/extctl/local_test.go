package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestLocalScript runs testdata/local: the commands that need no mesh, without a NATS server. In addition to testscript's
// own commands there is
//
//	exits CODE PROGRAM ARG…   run the program and require this exit code
//
// and the condition [modes]: file modes restrict what the test starts.
func TestLocalScript(t *testing.T) {
	t.Parallel()
	var modes atomic.Bool // the same in all scripts
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/local",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(env *testscript.Env) error {
			modes.Store(enforceFileModes())
			env.Setenv("NATS_URL", "nats://127.0.0.1:1")
			env.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise every extctl takes a second longer under -race
			for name, dir := range map[string]string{"XDG_DATA_HOME": ".data", "XDG_CONFIG_HOME": ".config", "XDG_STATE_HOME": ".state"} {
				env.Setenv(name, filepath.Join(env.WorkDir, dir))
			}
			return nil
		},
		Condition: func(cond string) (bool, error) {
			if cond != "modes" {
				return false, errors.New("unknown condition")
			}
			return modes.Load(), nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}
