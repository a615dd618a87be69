package mcp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// rawChildArg makes the test program an MCP server whose tools are the descriptors in a file, as they are.
const rawChildArg = "raw-child"

// rawChild answers calls with their arguments as text. It writes the answers to all requests that have arrived together.
func rawChild(file string, in io.Reader, stdout io.Writer) error {
	tools, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	lines, out := bufio.NewReaderSize(in, 64<<10), bufio.NewWriterSize(stdout, 64<<10)
	for {
		if lines.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil // the end of the input
		}
		var q struct {
			ID     json.RawMessage
			Method string
			Params struct{ Arguments json.RawMessage }
		}
		if json.Unmarshal(line, &q) != nil || q.ID == nil {
			continue
		}
		answer := `"error":{"code":-32601,"message":"no such method"}`
		switch q.Method {
		case "initialize":
			answer = `"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}`
		case "ping":
			answer = `"result":{}`
		case "tools/list":
			answer = `"result":{"tools":` + string(tools) + `}`
		case "tools/call":
			text, err := json.Marshal(string(q.Params.Arguments))
			if err != nil {
				return err
			}
			answer = `"result":{"content":[{"type":"text","text":` + string(text) + `}]}`
		}
		if _, err := fmt.Fprintf(out, "{\"jsonrpc\":\"2.0\",\"id\":%s,%s}\n", q.ID, answer); err != nil {
			return err
		}
	}
}

// conversation is a client on the standard input and output of a server, which compares bytes.
type conversation struct {
	t     *testing.T
	in    io.WriteCloser
	lines chan string
	last  int // id
}

// talk starts a server and initializes it.
func talk(t *testing.T, cmd *exec.Cmd) *conversation {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &conversation{t: t, in: in, lines: make(chan string, 100)}
	go func() { // ends with the server
		defer close(c.lines)
		r := bufio.NewReader(out)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			c.lines <- strings.TrimSpace(line)
		}
	}()
	t.Cleanup(func() {
		in.Close()
		for range c.lines { // the server ends with its input
		}
		_ = cmd.Wait()
	})
	c.ask("initialize", `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

func (c *conversation) send(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// next returns the next answer; notifications are skipped.
func (c *conversation) next() string {
	c.t.Helper()
	timeout := time.After(limit)
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				c.t.Fatal("the server has ended")
			}
			if strings.Contains(line, `"id":`) {
				return line
			}
		case <-timeout:
			c.t.Fatal("no answer")
		}
	}
}

// ask sends a request and returns the bytes of its result, or of its error.
func (c *conversation) ask(method, params string) json.RawMessage {
	c.t.Helper()
	c.last++
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, c.last, method, params))
	line := c.next()
	var a struct {
		ID            int
		Result, Error json.RawMessage
	}
	if err := json.Unmarshal([]byte(line), &a); err != nil || a.ID != c.last {
		c.t.Fatalf("the answer to request %d of %s is %.500s", c.last, method, line)
	}
	if a.Error != nil {
		return a.Error
	}
	return a.Result
}

func (c *conversation) call(name, args string) json.RawMessage {
	c.t.Helper()
	return c.ask("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, name, args))
}
