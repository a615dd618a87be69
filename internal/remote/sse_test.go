package remote

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// readEvents parses a whole stream.
func readEvents(r io.Reader, max int64) (e *eventReader, events []string, err error) {
	e = newEventReader(io.NopCloser(r), max)
	events, err = allEvents(e)
	return e, events, err
}

func allEvents(e *eventReader) (events []string, err error) {
	for {
		data, err := e.next()
		if err != nil {
			return events, err
		}
		events = append(events, string(data))
	}
}

func TestEventReader(t *testing.T) {
	for name, tt := range map[string]struct {
		stream string
		want   []string
		id     string
		retry  time.Duration
	}{
		"nothing":            {"", nil, "", 0},
		"one":                {"data: a\n\n", []string{"a"}, "", 0},
		"both line ends":     {"data: b\r\n\r\ndata: c\n\n", []string{"b", "c"}, "", 0},
		"no space":           {"data:a\n\n", []string{"a"}, "", 0},
		"two spaces":         {"data:  a\n\n", []string{" a"}, "", 0},
		"colons":             {"data: a:b: c\n\n", []string{"a:b: c"}, "", 0},
		"many lines":         {"data: a\ndata:\ndata\ndata: b\n\n", []string{"a\n\n\nb"}, "", 0},
		"comments":           {": hello\n:\n\ndata: a\n: between\ndata: b\n\n", []string{"a\nb"}, "", 0},
		"byte order mark":    {"\ufeffdata: a\n\n", []string{"a"}, "", 0},
		"other types":        {"event: ping\ndata: a\n\nevent: message\ndata: b\n\ndata: c\n\nevent: endpoint\ndata: d\n\n", []string{"b", "c"}, "", 0},
		"other fields":       {"date: a\ndatas: b\n data: c\nDATA: d\n\n", nil, "", 0},
		"empty data":         {"data\n\ndata: \n\ndata:\n\n", nil, "", 0},
		"ids":                {"id: 1\ndata: a\n\ndata: b\n\nid: 2\n\n", []string{"a", "b"}, "2", 0},
		"id of a cut event":  {"id: 1\ndata: a\n\nid: 2\ndata: b", []string{"a", "b"}, "1", 0},
		"id taken back":      {"id: 1\ndata: a\n\nid\ndata: b\n\n", []string{"a", "b"}, "", 0},
		"ids that cannot be": {"id: 1\n\nid: \x00\n\nid: é\n\nid: " + strings.Repeat("i", maxField) + "\n\n", nil, "1", 0},
		"retry":              {"retry: 1500\n\n", nil, "", 1500 * time.Millisecond},
		"retry too soon":     {"retry: 0\n\n", nil, "", minRetry},
		"retry too late":     {"retry: 999999999\n\n", nil, "", maxRetry},
		"retry nonsense":     {"retry: 1500\nretry: 1.5\nretry: -1\nretry: 99999999999999999999\nretry:\n\n", nil, "", 1500 * time.Millisecond},
		"cut within a name":  {"data: a\nda", []string{"a"}, "", 0},
		"cut within a line":  {"data: a\n\ndata: b", []string{"a", "b"}, "", 0},
		"cut at once":        {"da", nil, "", 0},
		"a long line":        {"data: " + strings.Repeat("x", 100<<10) + "\n\n", []string{strings.Repeat("x", 100<<10)}, "", 0},
		"long and short":     {"data: a\ndata: " + strings.Repeat("x", 100<<10) + "\n\ndata: b\n\n", []string{"a\n" + strings.Repeat("x", 100<<10), "b"}, "", 0},
		"two long events":    {strings.Repeat("data: "+strings.Repeat("x", 100<<10)+"\n\n", 2), []string{strings.Repeat("x", 100<<10), strings.Repeat("x", 100<<10)}, "", 0},
		"a long other line":  {strings.Repeat("x", 100<<10) + ":y\nid: " + strings.Repeat("x", 100<<10) + "\ndata: a\n\n", []string{"a"}, "", 0},
	} {
		for how, r := range map[string]io.Reader{
			"at once": strings.NewReader(tt.stream), "byte by byte": iotest.OneByteReader(strings.NewReader(tt.stream)),
		} {
			e, got, err := readEvents(r, 1<<20)
			if err != io.EOF || !slices.Equal(got, tt.want) || e.id != tt.id || e.retry != tt.retry {
				t.Errorf("%s, %s: %.300q, %v, id %q, retry %s; want %.300q, id %q, retry %s", name, how, got, err, e.id, e.retry, tt.want, tt.id, tt.retry)
			}
		}
	}
}

func TestEventReaderLimit(t *testing.T) {
	for stream, long := range map[string]bool{
		"data: 0123456789\n\n":                                       false,
		"data: 0123\ndata: 56789\n\n":                                false, // the line break counts
		"data: 0123\ndata: 567890\n\n":                               true,
		"data: 0123456789a\n\n":                                      true,
		"event: other\ndata: 0123456789abc\n\n":                      true,
		": " + strings.Repeat("c", 100<<10) + "\n":                   false,
		"data: 0123\n: " + strings.Repeat("c", 100<<10) + "\n\n":     false,
		"data: 0123\ndata: " + strings.Repeat("c", 100<<10) + "\n\n": true,
	} {
		_, _, err := readEvents(strings.NewReader(stream), 10)
		if _, ok := errors.AsType[*longEventError](err); ok != long {
			t.Errorf("%q: %v", stream, err)
		}
	}
}

// FuzzEventReader compares with a reader that parses the whole stream at once, for any partition of the stream.
func FuzzEventReader(f *testing.F) {
	f.Add([]byte("id: 1\r\ndata: {\"a\":1}\r\n\r\n: c\n\nevent: x\rdata: b\r\rretry: 5\ndata: c\n\n"), uint8(3))
	f.Add([]byte("\ufeffdata\ndata: x\n\ndata: y"), uint8(1))
	f.Fuzz(func(t *testing.T, stream []byte, n uint8) {
		if len(stream) > 10<<10 {
			return
		}
		e := newEventReader(io.NopCloser(&pieceReader{stream, int(n) + 1}), 1<<20)
		e.r = bufio.NewReaderSize(&pieceReader{stream, int(n) + 1}, 16) // so that lines are longer
		got, err := allEvents(e)
		if want := simpleEvents(string(stream)); err != io.EOF || !slices.Equal(got, want) {
			t.Errorf("%q in pieces of %d: %q, %v, want %q", stream, int(n)+1, got, err, want)
		}
		if _, got, err := readEvents(bytes.NewReader(stream), 4); slices.ContainsFunc(got, func(s string) bool { return len(s) > 4 }) {
			t.Errorf("%q: %q, %v, over the limit", stream, got, err)
		}
	})
}

type pieceReader struct {
	rest []byte
	n    int
}

func (p *pieceReader) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.rest[:min(p.n, len(p.rest))])
	p.rest = p.rest[n:]
	return n, nil
}

// simpleEvents implements the standard literally, except for the last event and a carriage return alone.
func simpleEvents(stream string) (events []string) {
	lines := strings.Split(stream, "\n")
	var data []string
	kind := ""
	end := func() {
		text := strings.Join(data, "\n")
		if len(bytes.TrimSpace([]byte(text))) > 0 && (kind == "" || kind == "message") {
			events = append(events, text)
		}
		data, kind = nil, ""
	}
	for i, line := range lines {
		last := i == len(lines)-1
		line = strings.TrimSuffix(line, "\r")
		name, value, colon := strings.Cut(line, ":")
		name = strings.TrimPrefix(name, "\ufeff")
		switch value = strings.TrimPrefix(value, " "); {
		case line == "" && !last || name == "" && !colon && !last:
			end()
		case name == "data" && (colon || !last):
			data = append(data, value)
		case name == "event" && !last && len(value) < maxField:
			kind = value
		}
	}
	end()
	return events
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for v, want := range map[string]time.Duration{
		"": 0, "0": 0, "3": 3 * time.Second, "-3": 0, "3.5": 0, "soon": 0, "99999999999": 0, "86400": time.Hour,
		now.Add(2 * time.Minute).Format(http.TimeFormat): 2 * time.Minute,
		now.Add(-time.Minute).Format(http.TimeFormat):    0,
		now.Add(48 * time.Hour).Format(http.TimeFormat):  time.Hour,
	} {
		if got := retryAfter(http.Header{"Retry-After": {v}}, now); got != want {
			t.Errorf("%q: %s, want %s", v, got, want)
		}
	}
}

// TestSecrets uses a server that repeats what it receives, in every encoding in which it could be quoted.
func TestSecrets(t *testing.T) {
	at := newEndpoint(Config{URL: "https://some%40one:" + secret + "@h.example/" + secret + "/x?k=" + secret + "&short=abc", Headers: map[string]string{
		"authorization": "Bearer " + secret, "Accept": "text/plain", "X-Other": secret + "=="}})
	if at.name != "https://h.example" {
		t.Errorf("name %q", at.name)
	}
	basic := at.header.Get("Authorization")
	if basic != "Bearer "+secret { // the configured header overrides the URL's credentials
		t.Errorf("Authorization %q", basic)
	}
	for _, text := range []string{
		"invalid token " + secret, "Cannot POST /" + secret + "/x", `{"h":"Bearer ` + secret + `"}`,
		base64.StdEncoding.EncodeToString([]byte("some@one:" + secret)), "user some@one",
	} {
		if got := at.quote(text, 300); strings.Contains(got, secret) || strings.Contains(got, "c29t") || strings.Contains(got, "some@one") {
			t.Errorf("%q is quoted as %q", text, got)
		}
	}
	if got := at.quote("accept text/plain\x00\x1b[31m \u202e now", 300); got != "accept text/plain [31m \u202e now" {
		t.Errorf("quoted as %q", got)
	}
}
