package mcp

import (
	"strings"
	"testing"
)

func TestIsError(t *testing.T) {
	large := strings.Repeat("x", 20_000)
	for text, want := range map[string]bool{
		`{"content":[{"type":"text","text":"no"}],"isError":true}`: true,
		`{"isError":true,"content":[]}`:                            true,
		`{ "isError" : true }`:                                     true,
		`{"isError":false,"structuredContent":{"isError":true}}`:   false,
		`{"isError":true,"isError":false}`:                         false, // the last one counts
		`{"content":[],"isError":false}`:                           false,
		`{"content":[{"text":"\"isError\":true"}]}`:                false,
		`{"content":[{"isError":true}]}`:                           false,
		`{"content":[],"isError":"true"}`:                          false,
		`{"content":[]}`:                                           false,
		`{}`:                                                       false,
		``:                                                         false,
		`[]`:                                                       false,
		`["isError",true]`:                                         false,
		`{"content":[{"text":"` + large + `"}],"isError":true}`:                  true,
		`{"content":[{"text":"` + large + `"}],"isError":true,"_meta":{"a":{}}}`: true,
		`{"isError":true,"content":[{"text":"` + large + `"}]}`:                  true,
		`{"isError":false,"content":[{"text":"` + large + `"}]}`:                 false,
		`{"content":[{"text":"` + large + `","isError":true}]}`:                  false,
		`{"structuredContent":{"x":"` + large + `","isError":true}}`:             false,
		`{"content":"` + large + `\"isError\":true}`:                             false, // not complete
		`{"a":{"isError":true},"content":[{"text":"` + large + `"}]}`:            false,
	} {
		if got := IsError([]byte(text)); got != want {
			t.Errorf("%.60s…: %v", text, got)
		}
	}
	if n := testing.AllocsPerRun(10, func() { IsError([]byte(`{"content":[],"isError":false}`)) }); n > 0 {
		t.Errorf("a result without an error allocates %v times", n)
	}
}

func BenchmarkIsError(b *testing.B) {
	for name, text := range map[string]string{
		"small":       `{"content":[{"type":"text","text":"Hello, Ada!"}]}`,
		"small-false": `{"content":[{"type":"text","text":"Hello, Ada!"}],"isError":false}`,
		"small-true":  `{"content":[{"type":"text","text":"Hello, Ada!"}],"isError":true}`,
		"1MB":         `{"content":[{"type":"text","text":"` + strings.Repeat("x", 1<<20) + `"}]}`,
	} {
		b.Run(name, func(b *testing.B) {
			result := []byte(text)
			for b.Loop() {
				IsError(result)
			}
		})
	}
}
