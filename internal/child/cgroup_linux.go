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

// cgroup is a control group (v2) of a life's own. Nothing gets out of one by itself, whatever it does to its
// session or its environment, so where we may make one it catches what the mark cannot. It has no
// controllers and limits nothing. "" is none.
type cgroup string

// cgroupName is what the directories of a mark, or of all marks that a cookie begins, are called.
func cgroupName(mark string) string { return "extmesh-" + mark }

// noCgroup is set when a process could not be started into one: a sandbox forbids it, say.
var noCgroup atomic.Bool

// newCgroup makes one where that is our business.
func newCgroup(mark string) cgroup {
	base := cgroupBase()
	if base == "" || noCgroup.Load() {
		return ""
	}
	dir := filepath.Join(base, cgroupName(mark))
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

// cgroupsOf lists the cgroups of all marks with a cookie.
func cgroupsOf(cookie string) (found []cgroup) {
	if base := cgroupBase(); base != "" {
		dirs, _ := filepath.Glob(filepath.Join(base, cgroupName(cookie)+".*"))
		for _, d := range dirs {
			found = append(found, cgroup(d))
		}
	}
	return found
}

// cgroupBase is the directory of the cgroup that we are in ourselves, if it was left to us: by systemd
// (Delegate=yes), or because it is the root of all that is to be seen, as in a container. Otherwise it is
// systemd's, and not even root should make directories in there.
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

// delegated reports whether systemd says that a cgroup is somebody else's to manage.
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

// pids lists who is in it, and in those that were made below it.
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

// has reports whether a process is in it.
func (c cgroup) has(pid int) bool {
	if c == "" {
		return false
	}
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	name := "/" + filepath.Base(string(c))
	return bytes.Contains(b, []byte(name+"\n")) || bytes.Contains(b, []byte(name+"/"))
}

// inCgroupOf reports whether a process is in a cgroup of any mark with a cookie.
func inCgroupOf(pid int, cookie string) bool {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	return bytes.Contains(b, []byte("/"+cgroupName(cookie)+"."))
}

// populated reports whether anybody in it is alive.
func (c cgroup) populated() bool {
	if c == "" {
		return false
	}
	b, err := os.ReadFile(c.file("cgroup.events"))
	return err == nil && bytes.Contains(b, []byte("populated 1"))
}

// kill ends all in it at once, those included that are being forked.
func (c cgroup) kill() {
	if c != "" {
		os.WriteFile(c.file("cgroup.kill"), []byte("1"), 0)
	}
}

// remove takes the directories away, those below first.
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
