package gate

import (
	"encoding/json"
	"fmt"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRedact(t *testing.T) {
	key := strings.Repeat("0123456789abcdef", 300) // longer than a piece, and than the limit of a cut line
	pem := "-----BEGIN KEY-----\r\nMIIEvQIBADANBgkq\n  aGVsbG8gd29ybGQ=  \nshort\n\n      \n-----END KEY-----\n"
	for _, tt := range []struct {
		name       string
		parent     []string
		allow      []string
		add        map[string]string
		line, want string
		windows    bool
	}{
		{name: "nothing known", line: "abc", want: "abc"},
		{name: "empty line", parent: []string{"A_TOKEN=secret1"}},
		{name: "secret-like", parent: []string{"A_TOKEN=secret1"}, line: "x secret1 y secret1", want: "x [A_TOKEN] y [A_TOKEN]"},
		{name: "plain", parent: []string{"A=secret1"}, line: "secret1", want: "secret1"},
		{name: "declared", parent: []string{"A=secret1"}, allow: []string{"A"}, line: "secret1", want: "[A]"},
		{name: "declared in other case", parent: []string{"A=secret1"}, allow: []string{"a"}, line: "secret1", want: "secret1"},
		{name: "declared in other case, on Windows", parent: []string{"A=secret1"}, allow: []string{"a"}, line: "secret1", want: "[A]", windows: true},
		{name: "declared and secret-like", parent: []string{"A_KEY=secret1"}, allow: []string{"A_KEY"}, line: "k=secret1;", want: "k=[A_KEY];"},
		{name: "six bytes", parent: []string{"A_KEY=abcdef"}, line: "abcdefg abcde", want: "[A_KEY]g abcde"},
		{name: "five bytes", parent: []string{"A_KEY=abcde"}, line: "abcdefg", want: "abcdefg"},
		{name: "six bytes, three letters", parent: []string{"A_KEY=äöü"}, line: "äöü", want: "[A_KEY]"},
		{name: "empty value", parent: []string{"A_KEY="}, line: "abc", want: "abc"},
		{name: "prefix of a line's end", parent: []string{"A_KEY=abcdefgh"}, line: "xabcdefg", want: "xabcdefg"},
		{name: "added, secret-like", add: map[string]string{"A_KEY": "secret1"}, line: "secret1", want: "[A_KEY]"},
		{name: "added, plain", add: map[string]string{"LEVEL": "warning"}, line: "warning", want: "warning"},
		{name: "address with a password", parent: []string{"DB=pg://u:p%40ssword@h"}, line: "pg://u:p%40ssword@h p@ssword p%40ssword", want: "[DB] [DB] [DB]"},
		{name: "added address with a password", add: map[string]string{"DB": "pg://u:hunter2@h"}, line: "user u, password hunter2", want: "user u, password [DB]"},
		{name: "added from a placeholder", parent: []string{"GITHUB_TOKEN=ghp_abc"}, add: map[string]string{"HEADER": "Bearer ghp_abc"},
			line: "sent Bearer ghp_abc", want: "sent Bearer [GITHUB_TOKEN]"},
		{name: "token in JSON", add: map[string]string{"HEADERS": `{"Authorization": "Bearer ntn_0123456789", "Notion-Version": "2022-06-28"}`}, allow: []string{"HEADERS"},
			line: "401 for Bearer ntn_0123456789, version 2022-06-28", want: "401 for Bearer [HEADERS], version 2022-06-28"},
		{name: "token in a plain variable", parent: []string{"TITLE=Basic settings"}, line: "no settings", want: "no settings"},
		{name: "longest first", parent: []string{"A_KEY=abcdef", "B_KEY=abcdefghi", "C_KEY=abcdefg"},
			line: "abcdefghi abcdefgx abcdefx", want: "[B_KEY] [C_KEY]x [A_KEY]x"},
		{name: "longest is not the one it looks like", parent: []string{"A_KEY=abcdef", "B_KEY=abcdefghijklmnop"}, line: "abcdefghijklmnox", want: "[A_KEY]ghijklmnox"},
		{name: "nor the next", parent: []string{"A_KEY=abcdefg", "B_KEY=abcdefghijklmn"}, line: "abcdefghijklmx", want: "[A_KEY]hijklmx"},
		{name: "one within another", parent: []string{"A_KEY=cdefgh", "B_KEY=abcdefghij"}, line: "abcdefghij cdefgh", want: "[B_KEY] [A_KEY]"},
		{name: "overlapping", parent: []string{"A_KEY=abcdefg", "B_KEY=efghijklm"}, line: "-abcdefghijklm-", want: "-[B_KEY]-"},
		{name: "overlapping in a chain", parent: []string{"A_KEY=abcdef", "B_KEY=defghi", "C_KEY=ghijkl"}, line: "abcdefghijkl", want: "[A_KEY]"},
		{name: "overlapping itself", parent: []string{"A_KEY=aaaaaa"}, line: "baaaaaaaaab", want: "b[A_KEY]b"},
		{name: "side by side", parent: []string{"A_KEY=abcdef", "B_KEY=ghijkl"}, line: "abcdefghijklabcdef", want: "[A_KEY][B_KEY][A_KEY]"},
		{name: "a value that is in a name", parent: []string{"A_KEY=secret1", "GITHUB_KEY=A_KEY]"}, line: "secret1", want: "[A_KEY]"},
		{name: "two names of a value", parent: []string{"B_KEY=secret1", "A_KEY=secret1"}, line: "secret1", want: "[A_KEY]"},
		{name: "every value of a name", parent: []string{"A_KEY=secret1", "A_KEY=secret2"}, line: "secret1 secret2", want: "[A_KEY] [A_KEY]"},
		{name: "lines", parent: []string{"A_KEY=" + pem}, line: "-----BEGIN KEY-----", want: "[A_KEY]"},
		{name: "second line", parent: []string{"A_KEY=" + pem}, line: "got MIIEvQIBADANBgkq!", want: "got [A_KEY]!"},
		{name: "indented line", parent: []string{"A_KEY=" + pem}, line: "aGVsbG8gd29ybGQ=", want: "[A_KEY]"},
		{name: "short line", parent: []string{"A_KEY=" + pem}, line: "short", want: "short"},
		{name: "blank line", parent: []string{"A_KEY=" + pem}, line: "            x", want: "            x"},
		{name: "lines in one", parent: []string{"A_KEY=" + pem}, line: `{"k":"MIIEvQIBADANBgkq\n  aGVsbG8gd29ybGQ="}`, want: `{"k":"[A_KEY]\n  [A_KEY]"}`},
		{name: "several lines given", parent: []string{"A_KEY=" + pem}, line: "a\nMIIEvQIBADANBgkq\nb", want: "a\n[A_KEY]\nb"},
		{name: "trimmed", parent: []string{"A_KEY= secret1\n"}, line: "secret1", want: "[A_KEY]"},
		{name: "short when trimmed", parent: []string{"A_KEY=ab    "}, line: "ab     x", want: "[A_KEY] x"},
		{name: "blank value", parent: []string{"A_KEY=        "}, line: "          x", want: "          x"},
		{name: "in JSON", parent: []string{`A_KEY=a"b\c<d&`}, line: `a"b\c<d& a\"b\\c<d& a\"b\\c\u003cd\u0026`, want: "[A_KEY] [A_KEY] [A_KEY]"},
		{name: "in a URL", parent: []string{"A_KEY=a b/c+d"}, line: "?k=a+b%2Fc%2Bd /a%20b%2Fc+d/", want: "?k=[A_KEY] /[A_KEY]/"},
		{name: "in a URL of Python", parent: []string{"A_KEY=ab/cd+ef=="}, line: "?k=ab/cd%2Bef%3D%3D", want: "?k=[A_KEY]"},
		{name: "in a URL of JavaScript", parent: []string{"A_KEY=p@ss!word(1)"}, line: "?k=p%40ss!word(1)", want: "?k=[A_KEY]"},
		{name: "in JSON of Python", parent: []string{"A_KEY=pässword\U0001f511"}, line: `"p\u00e4ssword\ud83d\udd11"`, want: `"[A_KEY]"`},
		{name: "in JSON of PHP", parent: []string{"A_KEY=ab/cd/ef"}, line: `"ab\/cd\/ef"`, want: `"[A_KEY]"`},
		{name: "short but long in JSON", parent: []string{"A_KEY=<<"}, line: `\u003c\u003c`, want: `\u003c\u003c`},
		{name: "not UTF-8", parent: []string{"A_KEY=se\xff\xfecret"}, line: "se\xff\xfecret", want: "[A_KEY]"},
		{name: "not UTF-8, made valid", parent: []string{"A_KEY=se\xff\xfecret"}, line: "se\uFFFDcret", want: "[A_KEY]"},
		{name: "nothing but invalid bytes", parent: []string{"A_KEY=\xff\xff\xff\xff\xff\xff"}, line: "\uFFFD", want: "\uFFFD"},
		{name: "name not UTF-8", parent: []string{"\xff_KEY=secret1"}, line: "secret1", want: "[\uFFFD_KEY]"},
		{name: "long", parent: []string{"A_KEY=" + key}, line: "x" + key + "y", want: "x[A_KEY]y"},
		{name: "long, cut", parent: []string{"A_KEY=" + key}, line: "x" + key[:2048], want: "x[A_KEY]"},
		{name: "long, with a short last piece", parent: []string{"A_KEY=" + key[:1026] + "!?"}, line: "x" + key[:1026] + "!?y", want: "x[A_KEY]y"},
		{name: "one long, the other its beginning", parent: []string{"A_KEY=" + key[:1500], "B_KEY=" + key[:3000]}, line: key[:3000] + "!" + key[:1500], want: "[A_KEY]![A_KEY]"},
		{name: "not a variable", parent: []string{"secret1", "=secret1"}, line: "secret1", want: "secret1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRedactor(tt.parent, tt.allow, tt.add, tt.windows)
			if have := r.Redact(tt.line); have != tt.want {
				t.Errorf("have %q\nwant %q", have, tt.want)
			}
		})
	}
}

func TestNilRedactor(t *testing.T) {
	var none *Redactor
	if have := none.Redact("abc"); have != "abc" {
		t.Error(have)
	}
	if have := new(Redactor).Redact("abcdefgh"); have != "abcdefgh" {
		t.Error(have)
	}
}

// letters returns n lower-case letters with a long period.
func letters(n int) string {
	b := make([]byte, 0, n+6)
	for i := 0; len(b) < n; i++ {
		b = append(b, 'a'+byte(i%26), 'a'+byte(i/26%26), 'a'+byte(i/676%26), 'z'-byte(i%25), 'z'-byte(i/25%26), 'z')
	}
	return string(b[:n])
}

// TestRedactLong uses values with lengths around the multiples of a piece's length, in each spelling.
func TestRedactLong(t *testing.T) {
	lengths := []int{6, 7, 8, 63, 64, 65, 512, 1000, 100 << 10}
	for n := maxPiece; n <= 3*maxPiece; n += maxPiece {
		lengths = append(lengths, n-6, n-1, n, n+1, n+5, n+6, n+7, n+maxPiece/2)
	}
	for _, n := range lengths {
		signs := min(n, 4*maxPiece) // pieces that are so much alike take long to find
		for name, value := range map[string]string{"letters": letters(n), "signs": strings.Repeat("<a>&\"", signs/5+2)[:signs]} {
			r := NewRedactor([]string{"A_KEY=" + value}, nil, nil)
			for _, s := range spellings(value) {
				if have, want := r.Redact("x "+s+" y "+s), "x [A_KEY] y [A_KEY]"; have != want {
					t.Errorf("%d %s: have %.60q of %d bytes, want %q", n, name, have, len(have), want)
				}
			}
		}
	}
}

// TestRedactorSize limits the memory that an extension's manifest can cost the bridge each time that it is loaded. A
// trie with a node for each byte of each spelling takes up to 3 GiB.
func TestRedactorSize(t *testing.T) {
	const size, limit = 900 << 10, 200 << 20
	for _, line := range []int{size, 1000, 170, 60, 20} {
		value := []byte(strings.Repeat("<>\"&%<<\"%>&&>\"<%>%&\"\"<", size)[:size])
		for i := range value {
			if i%(line+1) == line {
				value[i] = '\n'
			} else if value[i] == '&' {
				value[i] = 'a' + byte(i/(line+1)>>(i%4*4))%16 // so that lines differ
			}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := NewRedactor(nil, nil, map[string]string{"A_TOKEN": string(value)})
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > limit {
			t.Errorf("lines of %d bytes: %d MiB allocated", line, n>>20)
		}
		if n := len(r.values); n > size {
			t.Errorf("lines of %d bytes: %d values", line, n)
		}
	}
}

func TestRedactCut(t *testing.T) {
	const what = "BAD CREDENTIALS "
	long := strings.Repeat("N", 300)
	nested := strings.Repeat("ab<secret>", 100)
	for _, tt := range []struct {
		name   string
		env    []string
		text   string
		cut    int
		wanted string
	}{
		{"nothing of it", []string{"A_KEY=secret1"}, what, 0, ""},
		{"less than is in doubt", []string{"A_KEY=secret1"}, what + "secret1", 20, ""},
		{"a value in a piece", []string{"A_KEY=" + letters(6000)}, what + letters(6000), 4296, what + "[A_KEY]"},
		{"after a piece", []string{"A_KEY=" + letters(6000)}, what + letters(6000), len(what) + 2*maxPiece + 3, what + "[A_KEY]"},
		{"right after a piece", []string{"A_KEY=" + letters(6000)}, what + letters(6000), len(what) + 2*maxPiece, what + "[A_KEY]"},
		{"in the first piece", []string{"A_KEY=" + letters(6000)}, what + letters(6000), len(what) + maxPiece - 1, what},
		{"in the last piece", []string{"A_KEY=" + letters(6000)}, what + letters(6000) + what, len(what) + 5999, what + "[A_KEY]"},
		{"again and again", []string{"A_KEY=" + letters(800)}, strings.Repeat(letters(800)+" ", 9), 5000, strings.Repeat("[A_KEY] ", 4) + "[A_KEY]"},
		{"in a character", []string{"A_KEY=ab" + strings.Repeat("€", 400)}, what + "ab" + strings.Repeat("€", 400), len(what) + 1023, what[:len(what)-1]},
		// The name of the inner value takes 300 bytes for each 8 bytes in doubt.
		{"another within", []string{"A_KEY=" + nested, "B_" + long + "_KEY=<secret>"}, what + nested, len(what) + 999, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRedactor(tt.env, nil, nil)
			if have := RedactCut(r.Redact, strings.ToValidUTF8(tt.text[:tt.cut], "\uFFFD")); have != tt.wanted {
				t.Errorf("have %.80q of %d bytes, want %q", have, len(have), tt.wanted)
			}
		})
	}
	if have := RedactCut(nil, "abc"); have != "abc" {
		t.Errorf("without a redactor: %q", have)
	}
}

// TestRedactCutAnywhere cuts texts at each position. The result is a prefix of the whole text redacted, and contains
// everything before the bytes in doubt.
func TestRedactCutAnywhere(t *testing.T) {
	for _, n := range []int{6, 100, 800, maxPiece - 1, maxPiece, maxPiece + 1, 1500, 2 * maxPiece, 5000} {
		r := NewRedactor([]string{"A_KEY=" + letters(n)}, nil, nil)
		for _, between := range []string{"", " ", strings.Repeat("BETWEEN ", 100)} {
			text := strings.Repeat("IT IS "+letters(n)+between, 9000/(n+len(between))+1)
			all := r.Redact(text)
			for cut := 0; cut <= len(text); cut += 89 {
				have := RedactCut(r.Redact, text[:cut])
				least, _, _ := strings.Cut(r.Redact(text[:max(0, cut-maxPiece+1)]), "a")
				if !strings.HasPrefix(all, have) || len(have) < strings.LastIndex(least, " ")+1 {
					t.Fatalf("%d bytes, %q between, cut at %d: have %q", n, between, cut, have)
				}
			}
		}
	}
}

// FuzzRedact compares Redact with the simplest implementation: mark every byte of every occurrence, and remove what is
// marked.
func FuzzRedact(f *testing.F) {
	f.Add("abcdef", "defghi", "ghijkl", "abcdefghijkl")
	f.Add("aaaaaa", "aaaaaaa", "aab", "aaaaaaaaaaabaaaaaaa")
	f.Add("a\"b<c\\d", "line one\nline two", "\xff\xfe12345", "line one a\\\"b\\u003cc\\\\d \xff\xfe12345")
	f.Fuzz(func(t *testing.T, a, b, c, line string) {
		if len(line) > 1<<12 || strings.ContainsAny(line, "[]") { // brackets are what Redact writes
			return
		}
		set := secretSet{}
		for name, value := range map[string]string{"A": a, "B": b, "C": c} {
			set.add(name, value)
		}
		marked := make([]bool, len(line)+1)
		for value := range set {
			for i := range len(line) {
				if strings.HasPrefix(line[i:], value) {
					for j := range len(value) {
						marked[i+j] = true
					}
				}
			}
		}
		var kept strings.Builder
		for i := range len(line) {
			if !marked[i] {
				kept.WriteByte(line[i])
			}
		}
		out := set.redactor().Redact(line)
		if !slices.Contains(marked, true) && out != line {
			t.Fatalf("changed %q to %q", line, out)
		}
		untagged := strings.NewReplacer("[A]", "", "[B]", "", "[C]", "").Replace
		if have, want := untagged(out), kept.String(); have != want {
			t.Fatalf("%q becomes %q: keeps %q, want %q", line, out, have, want)
		}
	})
}

func secretEnv() []string {
	env := []string{"PATH=/usr/bin", "HOME=/root"}
	for i := range 20 {
		env = append(env, fmt.Sprintf("SERVICE%d_TOKEN=tok_%d_%x", i, i, i*7919+1<<30))
	}
	var pem strings.Builder
	for i := range 50 {
		fmt.Fprintf(&pem, "%064x\n", i*104729)
	}
	return append(env, "TLS_PRIVATE_KEY="+pem.String())
}

// The cost of a line without a secret, like nearly every line. It must not allocate.
func BenchmarkRedactWithoutHit(b *testing.B) {
	r := NewRedactor(secretEnv(), nil, nil)
	for _, bb := range []struct{ name, line string }{
		{"short", "2026-11-21T12:00:00Z INFO request served path=/v1/forecast status=200 elapsed=12ms client=10.0.0.7"},
		{"16KiB", strings.Repeat("the quick brown fox jumps over it; ", 470)},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(bb.line)))
			for b.Loop() {
				if r.Redact(bb.line) != bb.line {
					b.Fatal("hit")
				}
			}
		})
	}
}

func BenchmarkRedactHit(b *testing.B) {
	r := NewRedactor(secretEnv(), nil, nil)
	_, value, _ := split(secretEnv()[9])
	line := "connecting with " + value + " to api.example.org"
	b.ReportAllocs()
	for b.Loop() {
		if len(r.Redact(line)) == len(line) {
			b.Fatal("no hit")
		}
	}
}

func TestRedactDoesNotAllocate(t *testing.T) {
	r := NewRedactor(secretEnv(), nil, nil)
	line := strings.Repeat("nothing of it is secret; ", 20)
	if n := testing.AllocsPerRun(100, func() { r.Redact(line) }); n != 0 {
		t.Errorf("%v allocations for a line without a hit", n)
	}
}

// TestRedactAlike limits what an extension can cost the bridge that declares thousands of values with a common prefix
// and then writes that prefix: half a second's worth of the longest lines. Trying each value takes minutes.
func TestRedactAlike(t *testing.T) {
	var values strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&values, "aaaa%06d\n", i)
	}
	r := NewRedactor(nil, nil, map[string]string{"A_TOKEN": values.String()})
	start := time.Now()
	for _, line := range []string{strings.Repeat("a", 16<<10), strings.Repeat("aaaa", 4<<10) + "aaaa000007"} {
		for range 10 {
			if out := r.Redact(line); strings.Contains(out, "000007") {
				t.Fatal("a value was not redacted")
			}
		}
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("20 lines took %s", d)
	}
}

// TestRedactNested limits the cost of values that are the beginnings of each other.
func TestRedactNested(t *testing.T) {
	var values strings.Builder
	for n := minSecret; n < maxPiece; n++ {
		values.WriteString(strings.Repeat("a", n) + "\n")
	}
	r := NewRedactor(nil, nil, map[string]string{"A_TOKEN": values.String()})
	start := time.Now()
	for range 10 {
		if out := r.Redact(strings.Repeat(strings.Repeat("a", 511)+"b", 32)); out != strings.Repeat("[A_TOKEN]b", 32) {
			t.Fatalf("got %.100q", out)
		}
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("10 lines took %s", d)
	}
}

// The spellings are what the standard library writes: the test detects a change there.
func TestSpellings(t *testing.T) {
	const value = "p ä\"\\<>&/+\t%\u2028"
	j, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	have := spellings(value)
	for _, want := range []string{value, string(j[1 : len(j)-1]), url.QueryEscape(value), url.PathEscape(value)} {
		if !slices.Contains(have, want) {
			t.Errorf("%q is not in %q", want, have)
		}
	}
}
