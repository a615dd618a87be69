package registry

import (
	"slices"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
)

// TestNoSkills: an empty list of skills counts as a report.
func TestNoSkills(t *testing.T) {
	l := largeLoop(0)
	b := l.bridgeNamed("b", time.Now())
	one := []wire.SkillEntry{{Dir: "a", Name: "A"}}
	for _, tc := range []struct {
		skills []wire.SkillEntry
		marks  int
	}{{[]wire.SkillEntry{}, 0}, {one, 1}, {slices.Clone(one), 0}, {[]wire.SkillEntry{{Dir: "a", Name: "B"}}, 1}, {[]wire.SkillEntry{}, 1}} {
		clear(l.pub.dirty)
		if l.replaceSkills(b, tc.skills); b.skills == nil || len(l.pub.dirty) != tc.marks {
			t.Errorf("%v: stored %v, %d marks, want %d", tc.skills, b.skills, len(l.pub.dirty), tc.marks)
		}
	}
}
