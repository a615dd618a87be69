package jsonrpc

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestScan(t *testing.T) {
	for _, tt := range []struct {
		name, in                          string
		id, method, params, result, error string
		plain                             bool
	}{
		{name: "request", in: `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":[1,{"id":9}]}}`,
			id: "7", method: `"tools/call"`, params: `{"a":[1,{"id":9}]}`, plain: true},
		{name: "numbers kept", in: `{"jsonrpc":"2.0","id":1,"result":[9007199254740993,1e400,1.0,-0.5E+3]}`,
			id: "1", result: `[9007199254740993,1e400,1.0,-0.5E+3]`, plain: true},
		{name: "id last, spaces", in: " { \"jsonrpc\" : \"2.0\" ,\t\"result\" : { } , \"id\" : \"x\\\"y\" } \r\n",
			id: `"x\"y"`, result: `{ }`, plain: true},
		{name: "no version", in: `{"id":1,"result":null}`, id: "1", result: "null"},
		{name: "id twice", in: `{"jsonrpc":"2.0","id":1,"id":2,"result":1}`, id: "2", result: "1"},
		{name: "other case", in: `{"jsonrpc":"2.0","ID":1,"Result":2}`},
		{name: "error", in: `{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"}{\""}}`,
			id: "null", error: `{"code":-1,"message":"}{\""}`, plain: true},
		{name: "no id", in: `{"jsonrpc":"2.0","result":1}`, result: "1"},
		{name: "result twice", in: `{"jsonrpc":"2.0","id":1,"result":1,"result":2}`, id: "1", result: "2"},
		{name: "a second, escaped id", in: `{"jsonrpc":"2.0","id":1,"\u0069d":2,"result":1}`, id: "1", result: "1"},
		{name: "a second id in other case", in: `{"jsonrpc":"2.0","id":1,"Id":2,"result":1}`, id: "1", result: "1"},
		{name: "unknown members", in: `{"jsonrpc":"2.0","id":1,"result":1,"x":{"id":2}}`, id: "1", result: "1", plain: true},
		{name: "method null", in: `{"jsonrpc":"2.0","id":1,"method":null,"result":1}`, id: "1", result: "1"},
		{name: "method repeated", in: `{"jsonrpc":"2.0","id":1,"method":"m","result":1}`, id: "1", method: `"m"`, result: "1"},
		{name: "a request with all members", in: `{"jsonrpc":"2.0","id":1,"method":"m","result":null,"error":null}`,
			id: "1", method: `"m"`, result: "null", error: "null", plain: true},
		{name: "empty", in: `{}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, err := Scan([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range []struct {
				name, want string
				have       []byte
			}{{"id", tt.id, e.ID}, {"method", tt.method, e.Method}, {"params", tt.params, e.Params},
				{"result", tt.result, e.Result}, {"error", tt.error, e.Error}} {
				if string(m.have) != m.want || (m.have == nil) != (m.want == "") {
					t.Errorf("%s = %q, want %q", m.name, m.have, m.want)
				}
			}
			if e.plain != tt.plain {
				t.Errorf("plain = %v, want %v", e.plain, tt.plain)
			}
		})
	}
}

func TestScanRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"nothing":         ``,
		"banner":          `Server listening on stdio`,
		"array":           `[1]`,
		"two values":      `{"a":1}{"b":2}`,
		"open":            `{"a":1`,
		"no colon":        `{"a" 1}`,
		"trailing comma":  `{"a":1,}`,
		"bare word":       `{"a":NaN}`,
		"leading zero":    `{"a":01}`,
		"dot only":        `{"a":1.}`,
		"plus":            `{"a":+1}`,
		"exponent":        `{"a":1e}`,
		"newline in text": "{\"a\":\"x\ny\"}",
		"bad escape":      `{"a":"\x"}`,
		"short unicode":   `{"a":"\u12g4"}`,
		"mixed brackets":  `{"a":[1}}`,
		"byte order mark": "\xef\xbb\xbf{}",
		"too deep":        `{"a":` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth) + `}`,
	} {
		if _, err := Scan([]byte(in)); err == nil {
			t.Errorf("%s: %.40q was accepted", name, in)
		}
	}
	deep := `{"a":` + strings.Repeat("[", MaxDepth-1) + strings.Repeat("]", MaxDepth-1) + `}`
	if _, err := Scan([]byte(deep)); err != nil {
		t.Errorf("depth %d: %v", MaxDepth, err)
	}
}

// FuzzScan compares Scan with encoding/json: both accept the same texts (except for the depth) and find the same values.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":[1,2,{"y":"\u00e4\\"}]}}`,
		`{"id":"a","result":-0.1e-5}`, `{"a":"01234567\"89"}`, `{"error":null,"result":[]}`, `{} `, `{"":{}}`,
		"{\"a\":\"\x1f\"}", `{"id":1,"id":2}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := Scan(data)
		trimmed := bytes.TrimLeft(data, " \t\r\n")
		want := json.Valid(data) && len(trimmed) > 0 && trimmed[0] == '{'
		if err != nil {
			if want && !strings.Contains(err.Error(), "nested deeper") {
				t.Fatalf("refused valid JSON %q: %v", data, err)
			}
			return
		}
		if !want {
			t.Fatalf("accepted %q", data)
		}
		for _, v := range [][]byte{e.ID, e.Method, e.Params, e.Result, e.Error} {
			if v != nil && !json.Valid(v) {
				t.Fatalf("cut out %q of %q", v, data)
			}
		}
	})
}

// TestLongStrings puts each stop at every position of long strings, among bytes that differ from it by one bit or by one.
func TestLongStrings(t *testing.T) {
	const longest = 100
	for _, fill := range []byte{'x', ' ', '!', '#', '[', ']', 0x7f, 0x80, 0x9f, 0xa2, 0xdc, 0xff} {
		plain := bytes.Repeat([]byte{fill}, longest)
		for n := 0; n < longest; n++ {
			for _, stop := range []string{`"`, `\n"`, `\"`, `\x"`, "\x1f\"", "\n\"", "\x00\""} {
				text := append([]byte(`{"result":"`), plain[:n]...)
				text = append(append(append(text, stop...), plain[n:]...), `"}`...)
				if _, err := Scan(text); (err == nil) != json.Valid(text) {
					t.Fatalf("%q after %d times %q: %v", stop, n, fill, err)
				}
				text = append(append(text[:len(`{"result":"`)+n], stop...), '}')
				if _, err := Scan(text); (err == nil) != json.Valid(text) {
					t.Fatalf("%q after %d times %q, and the end: %v", stop, n, fill, err)
				}
			}
		}
	}
}

func BenchmarkScan(b *testing.B) {
	for _, size := range []struct {
		name string
		n    int
	}{{"256B", 256}, {"16KiB", 16 << 10}} {
		for _, kind := range []string{"text", "numbers"} {
			b.Run(size.name+"/"+kind, func(b *testing.B) {
				body := `"` + strings.Repeat("lorem ipsum ", size.n/12) + `"`
				if kind == "numbers" {
					body = "[" + strings.Repeat("3.14159,", size.n/8) + "1]"
				}
				line := []byte(`{"jsonrpc":"2.0","id":123456,"result":{"content":` + body + `}}`)
				b.SetBytes(int64(len(line)))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := Scan(line); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
