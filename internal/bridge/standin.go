package bridge

// STAND-IN, to be deleted: until internal/{breaker,config,discovery,gate} stand.

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/extmesh/extmesh/internal/child"
	"github.com/extmesh/extmesh/internal/supervise"
	"github.com/extmesh/extmesh/pkg/manifest"
	"github.com/extmesh/extmesh/pkg/mesh"
)

type Source struct{ Dirs []string }

func (Source) HeartbeatInterval() time.Duration { return 0 }

type plan struct {
	units  []*unit
	host   mesh.Host
	skills mesh.SkillReport
}

func (u *unit) same(v *unit) bool { return u.announce.ManifestHash == v.announce.ManifestHash }

func (b *Bridge) makePlan(context.Context) (plan, error) {
	p := plan{host: mesh.Host{Extensions: []string{}}, skills: mesh.SkillReport{Skills: []mesh.SkillEntry{}}}
	for _, dir := range b.cfg.Source.Dirs {
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != manifest.FileName {
				return nil
			}
			data, _ := os.ReadFile(path)
			m, diags := manifest.Parse(path, data, manifest.Options{})
			for _, d := range diags {
				b.log.Warn("manifest", "path", d.Path, "line", d.Line, "message", d.Message)
			}
			if m == nil || m.Transport.Type != manifest.Stdio {
				return nil
			}
			abs, _ := filepath.Abs(filepath.Dir(path))
			p.units = append(p.units, &unit{
				announce: mesh.Announce{ID: m.Plugin.ID, Version: m.Plugin.Version, Name: m.Plugin.Name, Host: b.cfg.Host, Bridge: b.cfg.Name,
					Transport: "stdio", Dialect: "ext", Features: []string{"stream", "cancel", "instance"}, ManifestHash: m.Hash},
				dialect:  m.Transport.Dialect,
				declared: m.Capabilities,
				spec:     child.Spec{Command: m.Transport.Command, Args: m.Transport.Args, Dir: abs, Env: os.Environ()},
				limits:   limits{handshake: 20 * time.Second, call: 30 * time.Second, maxCall: time.Hour, maxInflight: 256, drain: time.Second},
				policy:   supervise.DefaultPolicy(),
			})
			p.host.Extensions = append(p.host.Extensions, m.Plugin.ID)
			return nil
		})
	}
	return p, nil
}
