package mcp

import (
	"strings"
	"testing"
)

func TestTemplate(t *testing.T) {
	for template, uris := range map[string]map[string]bool{
		"file:///{name}":         {"file:///a": true, "file:///a/b": false, "file:///": false, "other:///a": false},
		"file:///{+path}":        {"file:///a/b?c": true, "file:///": false},
		"docs://{path*}":         {"docs://a": true, "docs://a/b.md": true, "docs://": false},
		"test://t/{id}/data":     {"test://t/1/data": true, "test://t/1/2/data": false, "test://t//data": false},
		"a://b{/seg,more}{?q,r}": {"a://b": true, "a://b/c": true, "a://b/c/d?q=1": true, "a://b#x": false},
		"a://b{.ext}{#frag}":     {"a://b.txt#x": true, "a://b": true, "a://bc": false},
		"a://b?x=1{&y}{;z}":      {"a://b?x=1&y=2": true, "a://bbx=1": false},
		"a.b(c":                  {"a.b(c": true, "axb(c": false},
		"a\n{x:3}":               {"a\nb": true},
	} {
		tpl, ok := ParseTemplate(template)
		if !ok {
			t.Errorf("%q is refused", template)
			continue
		}
		for uri, want := range uris {
			if _, got := tpl.Matches(uri); got != want {
				t.Errorf("%q matches %q: %v", template, uri, got)
			}
		}
	}
	for _, bad := range []string{"a{", "a}", "a{}", "{a}}", "{a", strings.Repeat("{a}", 60), "{{a}}"} {
		if _, ok := ParseTemplate(bad); ok {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func FuzzTemplate(f *testing.F) {
	f.Add("file:///{+path}", "file:///a")
	f.Fuzz(func(_ *testing.T, template, uri string) {
		if t, ok := ParseTemplate(template); ok {
			t.Matches(uri)
		}
	})
}

func TestFitEntry(t *testing.T) {
	for entry, want := range map[string]string{
		"{\"uri\":\"a\",\n \"name\":\"b\",\"size\":1.0,\"x\":[1e400]}":                                                  `{"uri":"a",  "name":"b","size":1.0,"x":[1e400]}`,
		`{"uri":"a","name":7,"title":null,"_meta":[],"icons":{},"annotations":{"priority":"x"},"mimeType":1,"x":1}`:     `{"uri":"a","x":1,"name":"a"}`,
		`{"uri":"a","name":"b","arguments":[{"name":"x","required":true}]}`:                                             `{"uri":"a","name":"b","arguments":[{"name":"x","required":true}]}`,
		`{"uri":"a","name":"b","arguments":[{"name":""}]}`:                                                              `{"uri":"a","name":"b"}`,
		`{"uri":"a","name":"b","arguments":[{"name":"x","description":null,"required":null}]}`:                          `{"uri":"a","name":"b","arguments":[{"name":"x"}]}`,
		`{"uri":"a","name":"b","annotations":{"lastModified":"2025-01-12"}}`:                                            `{"uri":"a","name":"b"}`,
		`{"uri":"a","name":"b","annotations":{"priority":5},"icons":[{}]}`:                                              `{"uri":"a","name":"b"}`,
		`{"uri":"a","name":"b","annotations":{"audience":["user"],"priority":1,"lastModified":"2025-01-12T15:00:58Z"}}`: `{"uri":"a","name":"b","annotations":{"audience":["user"],"priority":1,"lastModified":"2025-01-12T15:00:58Z"}}`,
		`{"uri":"a","name":"b","icons":[{"src":"s","sizes":"48x48"}]}`:                                                  `{"uri":"a","name":"b"}`,
		`{"uri":"a","name":"b","icons":[{"src":"s","mimeType":null}]}`:                                                  `{"uri":"a","name":"b"}`,
		`{"uri":"a","name":"b","icons":[{"src":"s","theme":"blue"}]}`:                                                   `{"uri":"a","name":"b"}`,
		`{"uri":"a","name":"b","icons":[{"src":"s","sizes":["48x48"],"theme":"dark"}]}`:                                 `{"uri":"a","name":"b","icons":[{"src":"s","sizes":["48x48"],"theme":"dark"}]}`,
		`{"uri":"a","name":"b","arguments":[7]}`:                                                                        `{"uri":"a","name":"b"}`,
		`{"uri":""}`:                                                                                                    "", `{"uri":7}`: "", `{}`: "", `7`: "",
	} {
		got, _, _ := FitEntry("uri", []byte(entry))
		if string(got) != want {
			t.Errorf("%s\nhave %s\nwant %s", entry, got, want)
		}
	}
}
