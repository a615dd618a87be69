package child

import (
	"regexp"
	"slices"
	"strings"
)

// maxReason is the size of an ExitError's Reason.
const maxReason = 300

var (
	// strong begins the report of a crash by a language's runtime.
	strong = regexp.MustCompile(`^(panic: |fatal error: |thread '.*' panicked at |Exception in thread |Unhandled exception)`)

	// marked contains an error, in most logs and programs.
	marked = regexp.MustCompile(`(?i:\b(error|err|fatal|panic|exception|failed)\b|✗|✘|× )|[A-Z]\w*(Error|Exception)\b`)

	// harmless states that there was no error.
	harmless = regexp.MustCompile(`(?i)\b(no|0|without|any) (error|exception)s?\b`)

	// detail is a part of the report of an error that is not its cause.
	detail = regexp.MustCompile(`^npm (ERR!|error) (code|errno|syscall|path|command|cwd|[A-Za-z0-9]+$|A complete log)|^npm (warn|WARN|notice)`)

	frame   = regexp.MustCompile(`^\s*(at |@ |File "|\d+: 0x|from .*:\d+:in )|^\t|^goroutine \d+ \[`) // a line of a stack trace
	caret   = regexp.MustCompile(`^\s*[\^~]+\s*$`)                                                    // below a line of the program's source
	filler  = regexp.MustCompile(`^[\s{}()\[\];,^~|+*=_-]*$`)                                         // blank, braces, rules
	version = regexp.MustCompile(`^(Node\.js|Bun|Deno|Python|npm|node)?,? ?v?\d+\.\d+\.\d+\S*( \(.*\))?$`)
	place   = regexp.MustCompile(`^\S+:\d+$`) // of the source, as Node.js prints it first
	usage   = regexp.MustCompile(`(?i)^usage\b`)

	escapes = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)|[@-Z\\\\^_])")
)

// withoutEscapes removes terminal colours and other escape sequences.
func withoutEscapes(s string) string {
	if strings.IndexByte(s, '\x1b') < 0 {
		return s
	}
	return escapes.ReplaceAllString(s, "")
}

// reasonIn returns the line of a program's output that most likely is the reason of its end, and whether that line contains an
// error. It has no certainty: programs end in many ways.
func reasonIn(lines []string) (line string, isError bool) {
	lines = slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return strings.TrimSpace(l) == "" })
	for _, find := range []func([]string) int{lastException, firstStrong, firstMarked} {
		if i := find(lines); i >= 0 {
			return joined(lines, i), true
		}
	}
	if i := beforeUsage(lines); i >= 0 {
		return joined(lines, i), false
	}
	for _, l := range slices.Backward(lines) {
		if informative(l) {
			return cut(strings.TrimSpace(l), maxReason), false
		}
	}
	return "", false
}

// lastException finds the exception of the last Python traceback: the first line after it without indentation. In an
// exception group all lines of a traceback have the same prefix.
func lastException(lines []string) int {
	const head = "Traceback (most recent call last):"
	found := -1
	for i := 0; i < len(lines); i++ {
		prefix, _, ok := strings.Cut(lines[i], head)
		if !ok || strings.ContainsAny(prefix, "+:") {
			continue
		}
		for j := i + 1; j < len(lines); j++ {
			rest, ok := strings.CutPrefix(lines[j], prefix)
			if !ok {
				break
			}
			if rest != "" && rest[0] != ' ' {
				found = j
				break
			}
		}
	}
	return found
}

func firstStrong(lines []string) int {
	return slices.IndexFunc(lines, strong.MatchString)
}

// firstMarked finds the first line that contains an error: if there is an excerpt of the program's source, after that.
func firstMarked(lines []string) int {
	after := 0
	for i, l := range lines {
		if caret.MatchString(l) {
			after = i + 1
		}
	}
	for _, from := range []int{after, 0} {
		for i := from; i < len(lines); i++ {
			if l := lines[i]; marked.MatchString(l) && informative(l) && !harmless.MatchString(l) {
				return i
			}
		}
	}
	return -1
}

// beforeUsage finds what a command line program wrote before its usage, or the usage.
func beforeUsage(lines []string) int {
	i := slices.IndexFunc(lines, usage.MatchString)
	if i > 0 && informative(lines[i-1]) {
		return i - 1
	}
	return i
}

// informative reports whether a line may be a reason.
func informative(l string) bool {
	for _, not := range []*regexp.Regexp{detail, frame, filler, version, place} {
		if not.MatchString(l) {
			return false
		}
	}
	return true
}

// joined returns line i, with the next one if it ends in a colon.
func joined(lines []string, i int) string {
	l := strings.TrimSpace(lines[i])
	if strings.HasSuffix(l, ":") && i+1 < len(lines) && !filler.MatchString(lines[i+1]) {
		l += " " + strings.TrimSpace(lines[i+1])
	}
	return cut(strings.TrimLeft(l, "| "), maxReason)
}
