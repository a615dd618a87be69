package fleet

import (
	"fmt"
	"regexp"
	"sync"

	"github.com/extmesh/extmesh/internal/wire"
)

// The limits of a skill.
const (
	maxSkillBody        = 256 << 10
	maxSkillName        = 512 // bytes of 128 characters
	maxSkillDescription = 4096
)

var skillDir = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`) })

// checkSkill checks a skill: its directory is part of a key of the bucket.
func checkSkill(s wire.SkillEntry) error {
	switch {
	case !skillDir().MatchString(s.Dir):
		return fmt.Errorf("skill directory %.80q: want at most 128 of [A-Za-z0-9_-]", s.Dir)
	case len(s.Body) > maxSkillBody:
		return fmt.Errorf("skill %s: a body of %d bytes is over the limit of %d", s.Dir, len(s.Body), maxSkillBody)
	case len(s.Name) > maxSkillName || len(s.Description) > maxSkillDescription:
		return fmt.Errorf("skill %s: its name or description is too long", s.Dir)
	}
	return nil
}
