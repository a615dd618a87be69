package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/extmesh/extmesh/internal/document"
)

const (
	maxFileText = 64 << 10 // bytes of a file in ${file:PATH}

	// These limits prevent a few bytes of manifest from using gigabytes. The system also limits arguments and
	// environment, mostly to 2 MiB.
	maxExpanded = 1 << 20 // of one value
	maxResolved = 4 << 20 // of all values of a transport
)

// Expander replaces the placeholders in a manifest's values. The zero value has no constants and uses the environment
// and the files of the process.
//
//	${EXTENSION_ROOT}     Root
//	${EXTENSION_ID}       ID
//	${EXTENSION_VERSION}  Version
//	${AGENT_VERSION}      AgentVersion
//	${VAR}                the environment variable VAR; missing when it is unset; ${env:VAR} is the same
//	${VAR:-default}       VAR, or default when it is unset or empty
//	${file:PATH}          the file's content without one trailing line break, at most 64 KiB
//	$${                   a literal ${
//
// A relative PATH is relative to Root. A file outside of Root, after following symbolic links, must be one of Files.
// The replacement of a placeholder is not expanded again.
type Expander struct {
	Root, ID, Version, AgentVersion string

	Files []string // absolute and clean paths of files outside of Root that may be read, such as /run/secrets/token

	LookupEnv func(name string) (string, bool)  // nil: os.LookupEnv
	ReadFile  func(path string) ([]byte, error) // nil: regular files of the operating system; path is absolute if Root is
}

// Expand replaces the placeholders in s. missing lists the variables that are unset and have no default, each once
// and in order; they are replaced by nothing. An error is an invalid placeholder or a file that cannot be read; it
// never contains a value.
func (e Expander) Expand(s string) (out string, missing []string, err error) {
	pieces, err := split(s)
	if err != nil {
		return "", nil, err
	}
	var b strings.Builder
	for _, p := range pieces {
		v, ok, err := e.value(p)
		if err != nil {
			return "", nil, err
		}
		if !ok && !slices.Contains(missing, p.text) {
			missing = append(missing, p.text)
		}
		if b.Len()+len(v) > maxExpanded {
			return "", nil, fmt.Errorf("the value is over %d bytes after replacing its placeholders", maxExpanded)
		}
		b.WriteString(v)
	}
	return b.String(), missing, nil
}

// value returns the text that replaces p; ok is false for an unset variable.
func (e Expander) value(p piece) (v string, ok bool, err error) {
	switch p.kind {
	case fileText:
		v, err = e.file(p.text)
		return v, true, err
	case constant:
		v, ok = map[string]string{
			extensionRoot: e.Root, extensionID: e.ID, extensionVersion: e.Version, agentVersion: e.AgentVersion,
		}[p.text]
	case envVar:
		lookup := e.LookupEnv
		if lookup == nil {
			lookup = os.LookupEnv
		}
		v, ok = lookup(p.text)
	case literal:
		return p.text, true, nil
	}
	if p.hasDefault && v == "" {
		return p.fallback, true, nil
	}
	return v, ok, nil
}

func (e Expander) file(path string) (string, error) {
	if !filepath.IsAbs(path) && !filepath.IsLocal(path) {
		return "", fmt.Errorf("${file:%s} leaves the extension's directory; write an absolute path for a file elsewhere", document.Clip(path, 64))
	}
	data, err := e.read(path)
	if err != nil {
		return "", fmt.Errorf("${file:%s}: %w", document.Clip(path, 64), err)
	}
	if len(data) > maxFileText {
		return "", fmt.Errorf("${file:%s}: the file has more than %d bytes", document.Clip(path, 64), maxFileText)
	}
	s, hasEnd := strings.CutSuffix(strings.TrimPrefix(string(data), "\ufeff"), "\n") // Windows programs begin files with this mark
	if hasEnd {
		s = strings.TrimSuffix(s, "\r")
	}
	return s, nil
}

// full returns the clean path of ${file:path}, absolute if Root is.
func (e Expander) full(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(e.Root, path)
}

// Outside returns the file that must be in Files for ${file:path}: the path itself or, if a symbolic link leads out
// of Root, the file that it points to. It returns "" for a file within Root.
func (e Expander) Outside(path string) string {
	full := e.full(path)
	if !within(e.Root, full) {
		return full
	}
	root, file, err := e.followed(full)
	if err != nil || within(root, file) { // read returns the same error
		return ""
	}
	return file
}

// followed returns Root and full with their symbolic links resolved.
func (e Expander) followed(full string) (root, file string, err error) {
	if root, err = filepath.EvalSymlinks(cmp.Or(e.Root, ".")); err != nil {
		return "", "", err
	}
	file, err = filepath.EvalSymlinks(full)
	return root, file, err
}

func within(root, file string) bool {
	rel, err := filepath.Rel(root, file)
	return err == nil && filepath.IsLocal(rel)
}

// errNotGranted is the error for a file outside of Root that is not in Files.
var errNotGranted = errors.New("the file is outside of the extension's directory and the host does not grant it")

// read reads the file of ${file:path} if that is allowed. A file within Root is opened relative to Root, so that a
// symbolic link created since the check cannot lead out of it.
func (e Expander) read(path string) ([]byte, error) {
	outside := e.Outside(path)
	switch {
	case outside != "" && !slices.Contains(e.Files, outside):
		return nil, errNotGranted
	case e.ReadFile != nil:
		return e.ReadFile(e.full(path))
	case outside != "":
		return document.ReadRegular(os.Stat, os.OpenFile, outside, maxFileText)
	}
	dir, file, err := e.followed(e.full(path))
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	rel, err := filepath.Rel(dir, file)
	if err != nil {
		return nil, err
	}
	return document.ReadRegular(root.Stat, root.OpenFile, rel, maxFileText)
}

// Resolve returns m's transport with its placeholders replaced: in env, headers and url, for a member in every value.
// For a member, ID, Version and Root are those of the parent; an empty ID or Version is taken from m. A member's Cwd
// becomes a directory: Root, or cwd relative to Root.
//
// missing lists the variables that are unset and have no default, sorted; with the gating mode "warn" the transport
// may be used nevertheless, with nothing in their place. The error joins all faults, each with its key: a file that
// cannot be read, or a value that is invalid after the replacement (a URL, a header with a line break, a variable
// with a NUL). It contains no value. m itself is not changed.
func (m *Manifest) Resolve(e Expander) (t Transport, missing []string, err error) {
	if e.ID == "" {
		e.ID = m.Plugin.ID
		if m.Parent != "" {
			e.ID = m.Parent
		}
	}
	if e.Version == "" {
		e.Version = m.Plugin.Version
	}
	c := &Manifest{Transport: m.Transport.clone(), Parent: m.Parent}
	set := map[string]bool{}
	var errs []error
	total := 0
	for _, v := range c.templates() {
		out, unset, err := e.Expand(v.value)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", v.key, err))
			continue
		}
		for _, name := range unset {
			set[name] = true
		}
		v.set(out)
		if total += len(out); total > maxResolved {
			errs = append(errs, fmt.Errorf("%s: with this value, all values together are over %d bytes after replacing their placeholders", v.key, maxResolved))
			break
		}
	}
	t = c.Transport
	if len(errs) == 0 {
		errs = t.illegal(m.Parent != "", len(set) > 0)
	}
	if m.Parent != "" && t.Type == Stdio && !filepath.IsAbs(t.Cwd) {
		t.Cwd = filepath.Join(e.Root, t.Cwd)
	}
	return t, slices.Sorted(maps.Keys(set)), errors.Join(errs...)
}

func (t Transport) clone() Transport {
	t.Args = slices.Clone(t.Args)
	t.Env = maps.Clone(t.Env)
	t.Headers = maps.Clone(t.Headers)
	return t
}

// illegal checks what Parse could not check: the values with their placeholders replaced. With a missing variable, a
// URL or a command is incomplete, which missing reports.
func (t Transport) illegal(member, incomplete bool) []error {
	var errs []error
	wrong := func(key, what string) {
		errs = append(errs, fmt.Errorf("%s: after replacing its placeholders it %s", key, what))
	}
	if t.Type == HTTP && !incomplete {
		if blank(t.URL) {
			wrong("url", "is blank")
		} else if w := wrongURL(t.URL, member); w != "" {
			wrong("url", w)
		}
	}
	if t.Type == Stdio && !incomplete && blank(t.Command) {
		wrong("command", "is blank")
	}
	for _, v := range (&Manifest{Transport: t, Parent: "any"}).templates() {
		if strings.HasPrefix(v.key, "headers.") && !headerValue(v.value) {
			wrong(v.key, "contains a line break or another control character")
		} else if strings.ContainsRune(v.value, 0) {
			wrong(v.key, "contains a NUL character")
		}
	}
	return errs
}
