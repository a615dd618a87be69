package discovery

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/extmesh/extmesh/internal/document"
	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/manifest"
)

// maxSkills limits the directories below a skills_dir that are read; the one message in which a bridge announces its
// skills holds far fewer.
const maxSkills = 10_000

// Skill is a valid SKILL.md.
type Skill struct {
	Dir  string // the directory's name, which is the skill's key and has the syntax of an extension id
	Path string // the SKILL.md, absolute
	*manifest.Skill
}

// ScanSkills reads dir/<name>/SKILL.md for every <name>, sorted by name. An invalid file is a diagnostic and the
// others are loaded; a directory without SKILL.md is ignored; a dir that does not exist has no skills, with an Info.
// Both <name> and the file may be symbolic links: the operator fills dir with one entry per skill, and there is no
// tree to search.
func ScanSkills(dir string) ([]Skill, []manifest.Diagnostic) {
	var f findings
	abs, err := filepath.Abs(dir)
	if err != nil {
		abs = dir
	}
	names, err := subdirs(abs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.add(manifest.Info, abs, "extensions.skills_dir", "the directory does not exist; no skills are loaded")
		return nil, f.diags
	case err != nil:
		f.add(manifest.Warn, abs, "extensions.skills_dir", "the skills cannot be read: %v", document.Reason(err))
		return nil, f.diags
	case len(names) > maxSkills:
		f.add(manifest.Error, abs, "extensions.skills_dir", "there are %d directories; only the first %d are read", len(names), maxSkills)
		names = names[:maxSkills]
	}
	var out []Skill
	for _, name := range names {
		if s := f.skill(abs, name); s != nil {
			out = append(out, *s)
		}
	}
	return out, f.diags
}

// skill reads one skill; it returns nil if there is no file or it is invalid.
func (f *findings) skill(dir, name string) *Skill {
	path := filepath.Join(dir, name, manifest.SkillFileName)
	target, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			f.add(manifest.Error, path, "", "the symbolic link is broken")
		}
		return nil
	}
	var data []byte
	if err == nil {
		data, err = document.ReadFile(target)
	}
	if err != nil {
		f.add(manifest.Error, path, "", "the skill cannot be read: %v", document.Reason(err))
		return nil
	}
	if err := SkillDir(name); err != nil {
		f.add(manifest.Error, path, "", "%v", err)
		return nil
	}
	s, diags := manifest.ParseSkill(path, data)
	f.diags = append(f.diags, diags...)
	if s == nil {
		return nil
	}
	return &Skill{Dir: name, Path: path, Skill: s}
}

// subdirs returns the names in dir that are directories or links, sorted.
func subdirs(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(MaxEntries)
	if err != nil && err != io.EOF {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() || e.Type()&fs.ModeSymlink != 0 {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// SkillDir returns what is wrong with the name of a skill's directory.
func SkillDir(name string) error {
	if wire.CheckID(name, false) == nil {
		return nil
	}
	return fmt.Errorf("the directory's name %q is the skill's key; want a letter a-z, then a-z, 0-9, - or _, at most %d bytes", name, manifest.MaxID)
}
