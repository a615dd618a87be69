package child

import (
	"errors"
	"path/filepath"
	"strings"
)

// isBatch reports whether a program is a batch file, which only cmd.exe can run: npx.cmd, for example.
func isBatch(path string) bool {
	ext := strings.ToLower(filepath.Ext(path))
	return ext == ".cmd" || ext == ".bat"
}

// batchLine is the command line with which cmd.exe runs a batch file with exactly these arguments. Windows passes the command
// line of a program on as text. os.StartProcess quotes it for C programs; cmd.exe would take & and < in it for its own, and
// remove the quotes around a path with blanks.
func batchLine(path string, args []string) (string, error) {
	var b strings.Builder
	b.WriteString(`cmd.exe /e:ON /v:OFF /d /c "`)
	for i, word := range append([]string{path}, args...) {
		if strings.ContainsAny(word, "\x00\r\n") || i == 0 && strings.Contains(word, `"`) {
			return "", errors.New("a batch file cannot be started with a line break in an argument")
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteByte('"')
		backslashes := 0
		for _, r := range word {
			switch r {
			case '\\':
				backslashes++
			case '"': // doubled for cmd.exe; the program that the batch file starts wants twice the backslashes before it
				b.WriteString(strings.Repeat(`\`, backslashes) + `"`)
				backslashes = 0
			case '%': // an empty substring of the directory between two % keeps %NAME% from being replaced
				b.WriteString("%%cd:~,")
				backslashes = 0
			default:
				backslashes = 0
			}
			b.WriteRune(r)
		}
		b.WriteString(strings.Repeat(`\`, backslashes) + `"`)
	}
	b.WriteByte('"')
	return b.String(), nil
}
