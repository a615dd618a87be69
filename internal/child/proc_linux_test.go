package child

import (
	"strings"
	"testing"
)

func TestParseStat(t *testing.T) {
	const rest = " 0 -1 4 1 2 3 4 50 60 7 8 20 0 "
	for _, tt := range []struct {
		text   string
		want   stat
		zombie bool
		ok     bool
	}{
		{"12 (sh) S 3 4 5" + rest + "1 0 99", stat{'S', 3, 4, 5, 4, 125, 1, 99, 0, 0}, false, true},
		{"12 (a) b) Z 1 2) Z 3 4 5" + rest + "1 0 99", stat{'Z', 3, 4, 5, 4, 125, 1, 99, 0, 0}, true, true},
		{"12 (sh) Z 3 4 5" + rest + "0 0 99", stat{'Z', 3, 4, 5, 4, 125, 0, 99, 0, 0}, true, true},
		{"12 (sh) Z 3 4 5" + rest + "7 0 99", stat{'Z', 3, 4, 5, 4, 125, 7, 99, 0, 0}, false, true},
		{"12 (sh) S 3 4 5" + rest + "1 0 99" + strings.Repeat(" 8", 28) + " 1234 0", stat{'S', 3, 4, 5, 4, 125, 1, 99, 1234, 8}, false, true},
		{"12 (sh) S 3 4 5", stat{}, false, false},
		{"12 (sh) S x 4 5" + rest + "1 0 99", stat{}, false, false},
		{"12 sh S 3 4 5" + rest + "1 0 99", stat{}, false, false},
		{"", stat{}, false, false},
	} {
		got, ok := parseStat([]byte(tt.text))
		if ok != tt.ok || ok && (got != tt.want || got.zombie() != tt.zombie) {
			t.Errorf("%q: got %+v (zombie %v), %v", tt.text, got, got.zombie(), ok)
		}
	}
}

func TestEnvironHasMarker(t *testing.T) {
	env := []byte("A=EXTMESH_COOKIE=x.1\x00EXTMESH_COOKIE=abc.12\x00B=\x00EXTMESH_COOKIE=last.3")
	for marker, want := range map[string]bool{
		"abc.12": true, "abc.": true, "abc.1": false, "x.1": false, "bc.12": false, "last.3": false, "": false, "last.": true,
	} {
		if got := environHasMarker(env, marker); got != want {
			t.Errorf("%q: %v", marker, got)
		}
	}
	if environHasMarker(nil, "abc.") {
		t.Error("found in nothing")
	}
}

func TestCgroupDir(t *testing.T) {
	const mounts = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
41 31 0:38 /pod/a /sys/fs/cgroup/unified rw,relatime shared:4 master:1 - cgroup2 cgroup2 rw
short
`
	for path, want := range map[string]string{
		"/pod/a":     "/sys/fs/cgroup/unified",
		"/pod/a/b":   "/sys/fs/cgroup/unified/b",
		"/pod":       "",
		"/pod/other": "",
		"/../x":      "",
	} {
		if got := cgroupDir(mounts, path); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}
