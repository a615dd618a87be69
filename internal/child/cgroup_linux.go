package child

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// cgroup is the directory of a control group (v2) for one run; "" means that there is none. A process cannot leave its
// cgroup by changing its session or environment, so where cgroups can be created they also find descendants without the
// marker. It has no controllers and limits nothing.
type cgroup string

// cgroupName returns the directory name for a marker, or, for a marker prefix, the start of these names.
func cgroupName(marker string) string { return "extmesh-" + marker }

// noCgroup is set when a process could not be started in a cgroup, for example because a sandbox forbids it.
var noCgroup atomic.Bool

// newCgroup creates a cgroup if this process may do so.
func newCgroup(marker string) cgroup {
	base := cgroupBase()
	if base == "" || noCgroup.Load() {
		return ""
	}
	dir := filepath.Join(base, cgroupName(marker))
	if os.Mkdir(dir, 0o755) != nil {
		return ""
	}
	c := cgroup(dir)
	if f, err := os.OpenFile(c.file("cgroup.kill"), os.O_WRONLY, 0); err != nil { // older than 5.14
		c.remove()
		return ""
	} else {
		f.Close()
	}
	return c
}

// cgroupsOf returns the cgroups of all markers with a prefix.
func cgroupsOf(prefix string) (found []cgroup) {
	if base := cgroupBase(); base != "" {
		dirs, _ := filepath.Glob(filepath.Join(base, cgroupName(prefix)+".*"))
		for _, d := range dirs {
			found = append(found, cgroup(d))
		}
	}
	return found
}

// cgroupBase returns the directory of this process's own cgroup, if this process may manage it: because systemd delegated
// it (Delegate=yes), or because it is the root of the visible hierarchy, as in a container. Otherwise systemd manages it,
// and not even root should create directories there.
var cgroupBase = sync.OnceValue(func() string {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	path := ""
	for line := range strings.Lines(string(own)) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			path = p
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || path == "" {
		return ""
	}
	dir := cgroupDir(string(mounts), path)
	if dir == "" || path != "/" && !delegated(dir) || unix.Access(dir, unix.W_OK) != nil {
		return ""
	}
	return dir
})

// cgroupDir finds a cgroup's directory under the mounts of cgroup2 (proc_pid_mountinfo(5)).
func cgroupDir(mountinfo, path string) string {
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		sep := slices.Index(f, "-")
		if sep < 5 || sep+1 >= len(f) || f[sep+1] != "cgroup2" {
			continue
		}
		if rel, err := filepath.Rel(f[3], path); err == nil && filepath.IsLocal(rel) {
			return filepath.Join(f[4], rel)
		}
	}
	return ""
}

// delegated reports whether systemd has delegated a cgroup.
func delegated(dir string) bool {
	b := make([]byte, 8)
	for _, attr := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := unix.Getxattr(dir, attr, b); err == nil && string(b[:n]) == "1" {
			return true
		}
	}
	return false
}

func (c cgroup) file(name string) string { return filepath.Join(string(c), name) }

// pids returns the processes in the cgroup and in those below it.
func (c cgroup) pids() (pids []int) {
	if c == "" {
		return nil
	}
	filepath.WalkDir(string(c), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == "cgroup.procs" {
			b, _ := os.ReadFile(path)
			for field := range strings.FieldsSeq(string(b)) {
				if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
		}
		return nil
	})
	return pids
}

// has reports whether a process is in the cgroup.
func (c cgroup) has(pid int) bool {
	if c == "" {
		return false
	}
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	name := "/" + filepath.Base(string(c))
	return bytes.Contains(b, []byte(name+"\n")) || bytes.Contains(b, []byte(name+"/"))
}

// inCgroupOf reports whether a process is in a cgroup of any marker with a prefix.
func inCgroupOf(pid int, prefix string) bool {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	return bytes.Contains(b, []byte("/"+cgroupName(prefix)+"."))
}

// populated reports whether the cgroup contains a running process.
func (c cgroup) populated() bool {
	if c == "" {
		return false
	}
	b, err := os.ReadFile(c.file("cgroup.events"))
	return err == nil && bytes.Contains(b, []byte("populated 1"))
}

// kill ends all processes in the cgroup at once, including those that are being forked.
func (c cgroup) kill() {
	if c != "" {
		os.WriteFile(c.file("cgroup.kill"), []byte("1"), 0)
	}
}

// remove removes the cgroup and those below it.
func (c cgroup) remove() {
	if c == "" {
		return
	}
	var dirs []string
	filepath.WalkDir(string(c), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	slices.Reverse(dirs)
	for _, d := range dirs {
		unix.Rmdir(d)
	}
}
