package jsonrpc

import (
	"bufio"
	"io"
	"strings"
	"testing"
)

// TestLogLinesWithIDs: a child writes log lines in JSON to its standard output with the id of a pending call, which
// continues to wait for its answer.
func TestLogLinesWithIDs(t *testing.T) {
	for _, line := range []string{
		`{"level":"info","id":ID,"msg":"row fetched"}`,
		`{"id":"ID","level":"info"}`,
		`{"level":"error","error":"timeout","id":ID}`,
		`{"msg":"request","method":"GET","params":{"key":"x"}}`,
		`{"level":"error","error":"API_KEY is missing"}`,
		`{"id":ID}`,
		`{"id":ID,"params":{"jsonrpc":"2.0"}}`,
		`{"id":ID,"ts":1.5,"Result":7,"JSONRPC":"2.0"}`,
	} {
		t.Run(line, func(t *testing.T) {
			var noise []string
			c := dial(t, Options{OnNoise: func(line []byte, _ error) { noise = append(noise, string(line)) }}, func(in *bufio.Reader, out io.Writer) {
				request, _ := in.ReadBytes('\n')
				e, _ := Scan(request)
				io.WriteString(out, strings.ReplaceAll(line+"\n"+`{"jsonrpc":"2.0","id":ID,"result":1}`+"\n", "ID", string(e.ID)))
			})
			if got, err := c.Call(t.Context(), "m", nil); err != nil || string(got) != "1" {
				t.Errorf("= %s, %v", got, err)
			}
			if len(noise) != 1 || noise[0] != strings.ReplaceAll(line, "ID", "1") {
				t.Errorf("noise: %q", noise)
			}
			if s := c.Stats(); s != (Stats{Noise: 1}) {
				t.Errorf("dropped: %+v", s)
			}
		})
	}
}

// TestAnswersWithMethod: a library that writes all members of a message into an answer, or repeats the method, is understood.
func TestAnswersWithMethod(t *testing.T) {
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":ID,"method":null,"params":null,"result":1,"error":null}`,
		`{"jsonrpc":"2.0","id":ID,"method":"m","result":1}`,
	} {
		c := dial(t, Options{}, func(in *bufio.Reader, out io.Writer) {
			request, _ := in.ReadBytes('\n')
			e, _ := Scan(request)
			io.WriteString(out, strings.ReplaceAll(line+"\n", "ID", string(e.ID)))
		})
		if got, err := c.Call(t.Context(), "m", nil); err != nil || string(got) != "1" {
			t.Errorf("%s: %s, %v", line, got, err)
		}
	}
}

func TestIDs(t *testing.T) {
	for raw, want := range map[string]uint64{
		"7": 7, `"7"`: 7, "7.0": 7, "7e0": 7, `"7.0"`: 7, "70e-1": 7, "1844674407370955160": 1844674407370955160,
		"": 0, "null": 0, "0.5": 0, "-7": 0, `"x"`: 0, "1e300": 0, "18446744073709551616": 0, "007": 0, "7.5": 0, "{}": 0, `""`: 0, "NaN": 0, "Inf": 0,
	} {
		if got, ok := ParseID([]byte(raw)); got != want || ok != (want != 0) {
			t.Errorf("%s: %d, %v, want %d", raw, got, ok, want)
		}
	}
}
