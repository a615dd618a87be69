package nearest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/internal/nearest"
)

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		most int
		want int
	}{
		{"", "", 9, 0},
		{"tool", "tool", 9, 0},
		{"tools", "tool", 9, 1},
		{"toll", "tool", 9, 1},
		{"tolo", "tool", 9, 1},
		{"otol", "tool", 9, 1},
		{"kitten", "sitting", 9, 3},
		{"kitten", "sitting", 3, 3},
		{"kitten", "sitting", 2, 2},
		{"abcdef", "badcfe", 9, 3},
		{"abcdef", "badcfe", 3, 3},
		{"a", strings.Repeat("a", 10_000), 4, 4},
		{strings.Repeat("x", 10_000), strings.Repeat("x", 10_000), 4, 4}, // not compared
	} {
		for _, swapped := range []bool{false, true} {
			a, b := tt.a, tt.b
			if swapped {
				a, b = b, a
			}
			if got := nearest.Distance(a, b, tt.most); got != tt.want {
				t.Errorf("Distance(%.20q, %.20q, %d) = %d, want %d", a, b, tt.most, got, tt.want)
			}
		}
	}
}

// TestDistanceAgrees compares Distance with the plain definition, without a bound or an early end.
func TestDistanceAgrees(t *testing.T) {
	words := []string{"", "a", "ab", "ba", "abc", "acb", "cab", "bca", "abcd", "badc", "bbbb", "aXbXc"}
	for _, a := range words {
		for _, b := range words {
			want := slow(a, b)
			for most := range 7 {
				if got := nearest.Distance(a, b, most); got != min(most, want) {
					t.Errorf("Distance(%q, %q, %d) = %d, want %d", a, b, most, got, min(most, want))
				}
			}
		}
	}
}

func slow(a, b string) int {
	if a == "" || b == "" {
		return len(a) + len(b)
	}
	change := slow(a[1:], b[1:])
	if a[0] != b[0] {
		change++
	}
	d := min(change, slow(a[1:], b)+1, slow(a, b[1:])+1)
	if len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] {
		d = min(d, slow(a[2:], b[2:])+1)
	}
	return d
}

func TestDistanceAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { nearest.Distance("ext_weather_today", "ext_wether_tody", 4) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func ExampleWord() {
	keys := []string{"transport", "capabilities", "requires"}
	for _, typed := range []string{"Transprot", "require", "tools"} {
		fmt.Println(nearest.Word(typed, keys))
	}
	// Output:
	// transport true
	// requires true
	//  false
}

func ExampleWords() {
	fmt.Println(nearest.Words("weathr", []string{"hello", "weather", "Weather2", "clock"}))
	// Output: [weather Weather2]
}
