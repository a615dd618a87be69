package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// forgetPeak begins a new peak (proc(5), clear_refs).
func forgetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// childOf finds the child process of a bridge that plays role.
func childOf(bridge int, role string) int {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", bridge))
	if err != nil {
		return 0
	}
	for _, t := range tasks {
		data, err := os.ReadFile(t)
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(data)) {
			env, err := os.ReadFile("/proc/" + f + "/environ")
			if err == nil && bytes.Contains(env, []byte("BENCH_ROLE="+role+"\x00")) {
				pid, _ := strconv.Atoi(f) // the kernel's own number
				return pid
			}
		}
	}
	return 0
}
