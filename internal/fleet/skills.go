package fleet

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// replaceSkills stores a bridge's skills and marks the old and the new ones. Bridges repeat their reports, and
// merging a skill of a thousand bridges is slow, so an unchanged report does nothing.
func (bs *bridges) replaceSkills(b *bridge, skills []wire.SkillEntry) {
	if b.skills != nil && slices.Equal(b.skills, skills) { // nil: not received yet
		return
	}
	for _, s := range slices.Concat(b.skills, skills) {
		bs.mark(SkillKey(s.Dir), false)
	}
	for _, s := range b.skills {
		delete(bs.skills[s.Dir], b.name)
		if len(bs.skills[s.Dir]) == 0 {
			delete(bs.skills, s.Dir)
		}
	}
	b.skills = skills
	bs.keepReports(b)
	for _, s := range skills {
		if bs.skills[s.Dir] == nil {
			bs.skills[s.Dir] = map[string]wire.SkillEntry{}
		}
		bs.skills[s.Dir][b.name] = s
	}
}

// present returns has without the bridges that are gone.
func (bs *bridges) present(has map[string]wire.SkillEntry) map[string]wire.SkillEntry {
	out := make(map[string]wire.SkillEntry, len(has))
	for name, s := range has {
		if b := bs.byName[name]; b == nil || !b.gone {
			out[name] = s
		}
	}
	return out
}

// markSkills marks the skills of a bridge that is gone or back.
func (bs *bridges) markSkills(b *bridge) {
	for _, s := range b.skills {
		bs.mark(SkillKey(s.Dir), false)
	}
}

// skill merges the skills of several bridges with the same directory name. The text of the lexically first bridge is
// shown.
func skill(has map[string]wire.SkillEntry) *wire.Skill {
	if len(has) == 0 {
		return nil
	}
	var s wire.Skill
	for name := range has {
		s.Hosts = append(s.Hosts, name)
	}
	slices.Sort(s.Hosts)
	shown := has[s.Hosts[0]]
	s.Name, s.Description, s.Body = shown.Name, shown.Description, shown.Body
	var differ []string
	for _, name := range s.Hosts {
		if e := has[name]; e.Body != s.Body || e.Description != s.Description || e.Name != s.Name {
			differ = append(differ, name)
		}
	}
	if len(differ) > 0 {
		s.Diagnostics = []wire.Diagnostic{{Level: "warn", Code: "conflict", Message: "the skill of bridge " +
			s.Hosts[0] + " is shown; it differs on " + strings.Join(differ[:min(len(differ), 5)], ", ")}}
	}
	return &s
}

// restoreBridge applies what an earlier leader wrote about a bridge: its report, unless this replica has received a
// later one, and whether it answers, which only a leader checks.
func (rs *restores) restoreBridge(name string, h wire.Host, now time.Time) {
	b := rs.bridges.byName[name]
	unseen := b == nil
	if b == nil || b.host == nil {
		if b = rs.bridges.bridgeNamed(name, now); b == nil {
			return
		}
		report := h
		report.State, report.Reason, report.StateSince = "", "", time.Time{}
		b.host = &report
		rs.bridges.keepReports(b)
	}
	if h.State == "" || !b.host.Since.Equal(h.Since) {
		return
	}
	if h.State == heartbeat.Lost || !b.inventory.Synced() {
		// The earlier leader may have received reports that this replica has missed, and can no longer request.
		b.host.Extensions, b.host.ExtensionsLeftOut = h.Extensions, h.ExtensionsLeftOut
		rs.bridges.keepReports(b)
	}
	b.answered, b.gone, b.reason, b.changed = true, h.State == heartbeat.Lost, h.Reason, h.StateSince
	b.pings.next, b.pings.pause, b.pings.timeouts = time.Time{}, 0, 0
	if unseen && b.gone && !h.StateSince.IsZero() && h.StateSince.Before(now) {
		b.seen = h.StateSince // a new registry does not keep it longer
	}
}

// restoreBridges restores hosts and skills written by an earlier leader, for bridges from which nothing was received.
func (rs *restores) restoreBridges(now time.Time) {
	skills := map[string][]wire.SkillEntry{}
	rs.catalog.Each(func(key string, r Record) {
		kind, name, _ := strings.Cut(key, ".")
		switch kind {
		case wire.KindHost:
			var h wire.Host
			if checkBridge(name) == nil && json.Unmarshal(r.Value, &h) == nil {
				rs.restoreBridge(name, h, now)
			}
		case wire.KindSkill:
			var s wire.Skill
			if json.Unmarshal(r.Value, &s) != nil {
				return
			}
			for _, h := range s.Hosts {
				skills[h] = append(skills[h], wire.SkillEntry{Name: s.Name, Dir: name, Description: s.Description, Body: s.Body})
			}
		}
	})
	for name, list := range skills {
		if b := rs.bridges.byName[name]; b != nil && b.skills == nil { // a bridge without a host document is gone
			rs.bridges.replaceSkills(b, list)
		}
	}
}
