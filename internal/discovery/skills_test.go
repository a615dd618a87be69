package discovery

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestScanSkills(t *testing.T) {
	dir := tempDir(t)
	skill := func(name, text string) { write(t, filepath.Join(dir, name, "SKILL.md"), text) }
	skill("zeta", "---\nname: Last\ndescription: D\n---\nBody\n")
	skill("deploy-app", "---\nname: Deploy, please\ndescription: How to deploy\nrequires: {bins: [git]}\n---\nDo it.\n")
	skill("broken", "---\nmax_chars: many\n---\nBody\n")
	skill("unclosed", "---\nname: x\n")
	skill("Bad Name", "---\nname: x\ndescription: D\n---\nBody\n")
	write(t, filepath.Join(dir, "no-skill", "README.md"), "")
	write(t, filepath.Join(dir, "a-file"), "")
	if err := os.MkdirAll(filepath.Join(dir, "a-dir", "SKILL.md"), 0o755); err != nil {
		t.Fatal(err)
	}
	symlink(t, "zeta", filepath.Join(dir, "linked"))
	symlink(t, "nowhere", filepath.Join(dir, "dangling"))
	symlink(t, "nowhere.md", filepath.Join(dir, "hollow", "SKILL.md"))

	skills, diags := ScanSkills(dir)
	var got []string
	for _, s := range skills {
		if want := filepath.Join(dir, s.Dir, "SKILL.md"); s.Path != want {
			t.Errorf("path %s, want %s", s.Path, want)
		}
		got = append(got, fmt.Sprintf("%s: %s: %s %v", s.Dir, s.Name, strings.TrimSpace(s.Body), s.Requires.Bins))
	}
	for _, d := range diags {
		rel, _ := filepath.Rel(dir, d.Path)
		d.Path = filepath.ToSlash(rel)
		got = append(got, d.String())
	}
	want := []string{
		"deploy-app: Deploy, please: Do it. [git]",
		"linked: Last: Body []",
		"zeta: Last: Body []",
		`Bad Name/SKILL.md: error: the directory's name "Bad Name" is the skill's key; want a letter a-z, then a-z, 0-9, - or _, at most 64 bytes`,
		"a-dir/SKILL.md: error: the skill cannot be read: it is a directory, not a regular file",
		"broken/SKILL.md: warn: description: missing; agents choose a skill by its description",
		"broken/SKILL.md:2:12: error: max_chars: ",
		"hollow/SKILL.md: error: the symbolic link is broken",
		"unclosed/SKILL.md:1:1: error: the front matter is never closed",
	}
	if len(got) != len(want) {
		t.Fatalf("got\n%s", strings.Join(got, "\n"))
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("got  %s\nwant %s…", got[i], want[i])
		}
	}
}

func TestScanSkillsDir(t *testing.T) {
	dir := tempDir(t)
	write(t, filepath.Join(dir, "file"), "")
	for _, test := range []struct{ dir, want string }{
		{filepath.Join(dir, "missing"), "info: extensions.skills_dir: the directory does not exist"},
		{filepath.Join(dir, "file"), "warn: extensions.skills_dir: the skills cannot be read"},
	} {
		skills, diags := ScanSkills(test.dir)
		if d := one(t, diags); len(skills) != 0 || !strings.Contains(d.String(), test.want) {
			t.Errorf("%s: got %v and %v, want %s", test.dir, skills, d, test.want)
		}
	}
	if skills, diags := ScanSkills(dir); len(skills) != 0 || len(diags) != 0 {
		t.Errorf("without skills: got %v and %v", skills, diags)
	}
}

func TestSkillDir(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "a-b_9": true, strings.Repeat("a", 64): true,
		"": false, "9a": false, "-a": false, "A": false, "aB": false, "a.b": false, "a b": false, "ä": false, "aä": false, strings.Repeat("a", 65): false,
	} {
		if got := SkillDir(name) == nil; got != want {
			t.Errorf("SkillDir(%q) accepts it: %t, want %t", name, got, want)
		}
	}
}
