package main

import (
	"bufio"
	"context"
	"io"
	"regexp"
	"strings"
	"testing"
)

// newCatalogBed is a bed with a catalog that the test writes.
func newCatalogBed(t *testing.T) (b *bed, put func(key, value string)) {
	t.Helper()
	b, stop, err := newBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return b, func(key, value string) {
		t.Helper()
		if _, err := b.kv.PutString(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	b, put := newCatalogBed(t)
	put("state.w", `{"state":"ready","available":true,"instances":[{"instance":"i","state":"ready"}]}`)
	put("spec.w", `{"id":"w","version":"1.0.0","tools":[{"name":"ext_w_a","tool":"a"}]}`)
	for _, tc := range []struct {
		flag string
		want []string // after each change
	}{
		{"", []string{
			`^\S+  3 +w +ready → restarting  0/0  exit status 1$`,
			`^\S+  4 +w +version 1.1.0, 2 tools$`,
			`^\S+  5 +h +bridge's report changed$`,
			`^\S+  6 +h +bridge ready$`,
			`^\S+  7 +h +bridge lost  it is gone$`,
			`^\S+  8 +w +removed$`,
		}},
		{"--json", []string{
			`^\{"revision":9,"key":"state.w","op":"put","value":\{"state":"restarting","reason":"exit status 1"\}\}$`,
			`^\{"revision":10,"key":"spec.w","op":"put","value":\{"id":"w","version":"1.1.0",.*\}\}$`,
			`^\{"revision":11,"key":"host.h","op":"put","value":\{"bridge":"h"\}\}$`,
			`^\{"revision":12,"key":"host.h","op":"put","value":\{"bridge":"h","state":"ready"\}\}$`,
			`^\{"revision":13,"key":"host.h",`,
			`^\{"revision":14,"key":"state.w","op":"delete"\}$`,
		}},
		{"h other", []string{"", "", `^\S+  17 +h +bridge's report changed$`, `^\S+  18 +h +bridge ready$`, `^\S+  19 +h +bridge lost  it is gone$`, ""}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		outR, outW := io.Pipe()
		errR, errW := io.Pipe()
		done := make(chan int, 1)
		go func() { // ends with cancel
			done <- run(ctx, strings.Fields("watch --server "+b.url+" "+tc.flag), nil, outW, errW, func(string) string { return "" })
		}()
		if line, err := bufio.NewReader(errR).ReadString('\n'); !strings.HasPrefix(line, "watching from revision ") {
			t.Fatalf("stderr %q, %v", line, err)
		}
		go func() { _, _ = io.Copy(io.Discard, errR) }() // ends when errW is closed
		lines := bufio.NewReader(outR)
		for i, change := range []func(){
			func() { put("state.w", `{"state":"restarting","reason":"exit status 1"}`) },
			func() {
				put("spec.w", `{"id":"w","version":"1.1.0","tools":[{"name":"ext_w_b","tool":"b"},{"name":"ext_w_c","tool":"c"}]}`)
			},
			func() { put("host.h", `{"bridge":"h"}`) },
			func() { put("host.h", `{"bridge":"h","state":"ready"}`) },
			func() { put("host.h", `{"bridge":"h","state":"lost","reason":"is gone"}`) },
			func() {
				if err := b.kv.Delete(t.Context(), "state.w"); err != nil {
					t.Fatal(err)
				}
			},
		} {
			if change(); tc.want[i] == "" { // it is not selected
				continue
			}
			line, err := lines.ReadString('\n')
			if !regexp.MustCompile(tc.want[i]).MatchString(strings.TrimSuffix(line, "\n")) {
				t.Errorf("watch %s: %q, %v; want %s", tc.flag, line, err, tc.want[i])
			}
		}
		cancel()
		if code := <-done; code != exitInterrupted {
			t.Errorf("exit code %d", code)
		}
		errW.Close()
	}
}
