package child

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/extmesh/extmesh/internal/gate"
)

func TestCleanLine(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	hide := func(s string) string { return strings.ReplaceAll(s, "s3cret", "*") }
	for _, tt := range []struct {
		name, line string
		size       int
		want       string
	}{
		{"plain", "hello", 5, "hello"},
		{"CRLF", "hello\r", 6, "hello"},
		{"bytes that are no text", "a\xff\xfeb", 4, "a\uFFFDb"},
		{"a secret", "key s3cret.", 11, "key *."},
		{"just fits", x(maxErrLine), maxErrLine, x(maxErrLine)},
		{"one more", x(maxErrLine + 1), maxErrLine + 1, x(maxErrLine) + " [cut: 16385 bytes]"},
		{"a secret across the cut", x(maxErrLine-3) + "s3cret" + x(100), maxErrLine + 103,
			x(maxErrLine-3) + "*xx [cut: 16487 bytes]"},
		{"a secret that was not read to its end", strings.Repeat("s3cret", 4000)[:maxErrLine+margin], 24000,
			strings.Repeat("*", (maxErrLine+margin)/6) + "s3"},
		{"a character across the cut", x(maxErrLine-1) + "ü" + x(10), maxErrLine + 11, x(maxErrLine-1) + " [cut: 16395 bytes]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := cleanLine(tt.line, tt.size, hide)
			if tt.size == 24000 {
				if strings.Contains(got, "s3") {
					t.Errorf("ends in %q", got[len(got)-40:])
				}
				return
			}
			if got != tt.want {
				t.Errorf("got %.40q … %q", got, got[max(0, len(got)-40):])
			}
		})
	}
}

// No part of a secret that was not read to its end is shown, and the text before it stays.
func TestCleanLineCut(t *testing.T) {
	key := strings.Repeat("0123456789", 5000)
	redact := gate.NewRedactor([]string{"A_KEY=" + key, "B_" + strings.Repeat("N", 300) + "_KEY=<token>"}, nil, nil).Redact
	for line, want := range map[string]string{
		"bad key " + key: "bad key [A_KEY] [cut: 50008 bytes]",
		// Each <token> near the end becomes 308 bytes, which move the rest of the key away from it.
		key[:maxErrLine+margin-450] + strings.Repeat("<token>0", 5625): "[A_KEY] [cut: 65030 bytes]",
	} {
		got := cleanLine(line[:maxErrLine+margin], len(line), redact)
		if got != want {
			t.Errorf("got %.80q … %q", got, got[max(0, len(got)-40):])
		}
	}
}

func FuzzCleanLine(f *testing.F) {
	f.Add("hello s3cret", 12)
	f.Add(strings.Repeat("\xff", 40), 1<<30)
	f.Add(strings.Repeat("ü", maxErrLine), 2*maxErrLine)
	f.Fuzz(func(t *testing.T, line string, size int) {
		line = line[:min(len(line), maxErrLine+margin)]
		size = max(size, len(line))
		got := cleanLine(line, size, func(s string) string { return strings.ReplaceAll(s, "s3cret", "*") })
		if !utf8.ValidString(got) || len(got) > maxErrLine+64 || strings.Contains(got, "s3cret") {
			t.Errorf("%q (%d) became %q", line, size, got)
		}
		if last := lastBytes(got, 10); len(last) > 10 || !utf8.ValidString(last) || !strings.HasSuffix(got, last) {
			t.Errorf("the last of %q is %q", got, last)
		}
	})
}
