package mcp

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// collected are the durations of the calls of several callers.
type collected struct {
	mu   sync.Mutex
	took []time.Duration
}

func (c *collected) add(took []time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took = append(c.took, took...)
}

// processorTime is the processor time that a process has used; its unit is 10 ms.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// resident is the memory of a process, and what remains without the pages of the program's file.
func resident(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	mb := func(key string) float64 {
		_, rest, _ := strings.Cut(string(text), key+":")
		kb, _ := strconv.Atoi(strings.Fields(rest)[0])
		return float64(kb) / 1024
	}
	return fmt.Sprintf("%.1f MB (%.1f without the program's file)", mb("VmRSS"), mb("RssAnon"))
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if len(s) == 0 {
		return 0
	}
	return s[len(s)/2]
}

// ratio is the median of the ratios of the rounds.
func ratio(a, b []float64) float64 {
	var r []float64
	for i := range min(len(a), len(b)) {
		r = append(r, a[i]/b[i])
	}
	return median(r)
}
