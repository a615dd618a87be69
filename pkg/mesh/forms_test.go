package mesh_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/pkg/mesh"
	"github.com/extmesh/extmesh/pkg/rpc"
)

// forms is a service that answers each form of a call in its own way; "" is silence.
type forms struct {
	mu          sync.Mutex
	short, call string // members of the answer
	asked       []string
	heard       func() // of a request that is not answered
}

const (
	formUnknown = `"error":{"code":-32601,"message":"no such method"}`
	formResult  = `"result":"sunny"`
)

func (f *forms) answer(m *nats.Msg) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name, body := "short", f.short
	if strings.Contains(string(m.Data), `"tools/call"`) {
		name, body = "call", f.call
	}
	f.asked = append(f.asked, name)
	if body == "" {
		f.heard()
		return
	}
	m.Respond([]byte(`{"jsonrpc":"2.0","id":1,` + body + `}`))
}

// is sets how each form is answered from now on, and returns what was asked before.
func (f *forms) is(short, call string) (asked string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked = strings.Join(f.asked, " ")
	f.short, f.call, f.asked = short, call, nil
	return asked
}

// TestFormRemembered checks what a client learns from the answer to the other form of a call: that the extension knows
// it, where that was the extension's own, and nothing from an answer that would have been the same to any form.
func TestFormRemembered(t *testing.T) {
	connect := startServer(t)
	f := &forms{}
	foreign(t, connect(), f.answer)
	nc := connect()
	for _, tt := range []struct {
		name, second string
		next         string // what is asked in the next call
	}{
		{"a result", formResult, "call"},
		{"an error of its own", `"error":{"code":7,"message":"no such city"}`, "call"},
		{"an error of its own with a code of the mesh's", `"error":{"code":-32001,"message":"slow"}`, "call"},
		{"neither", formUnknown, "short"},
		{"nothing, until the caller leaves", ``, "short"},
		{"a time-out", `"error":{"code":-32001,"message":"late","data":{"kind":"timeout","ran":"maybe"}}`, "short"},
		{"cancelled", `"error":{"code":-32007,"message":"gone","data":{"kind":"cancelled","ran":"maybe"}}`, "short"},
		{"nobody there", `"error":{"code":-32003,"message":"stopped","data":{"kind":"unavailable","ran":"no"}}`, "short"},
		{"full", `"error":{"code":-32005,"message":"full","data":{"kind":"overloaded","ran":"no"}}`, "short"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client := mesh.NewClient(nc, mesh.ClientOptions{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f.heard = cancel
			f.is(formUnknown, tt.second)
			client.Call(ctx, "weather/yesterday", nil)
			if asked := f.is(formResult, formResult); !strings.HasPrefix(asked, "short call") {
				t.Fatalf("asked %q, want both forms", asked)
			}
			if got, err := client.Call(t.Context(), "weather/today", nil); err != nil || string(got) != `"sunny"` {
				t.Errorf("the next call: %s, %v", got, err)
			}
			if asked := f.is("", ""); asked != tt.next {
				t.Errorf("the next call asked %q, want %q", asked, tt.next)
			}
		})
	}
}

// TestFormForgotten has a service that knew one form replaced by one that knows the other, and back.
func TestFormForgotten(t *testing.T) {
	connect := startServer(t)
	f := &forms{}
	foreign(t, connect(), f.answer)
	client := mesh.NewClient(connect(), mesh.ClientOptions{})
	for _, tt := range []struct{ short, call, asked string }{
		{formUnknown, formResult, "short call"},
		{formUnknown, formResult, "call"},
		{formResult, formUnknown, "call short"},
		{formResult, formUnknown, "short"},
		{formUnknown, formResult, "short call"},
		{formUnknown, formUnknown, "call short"},
	} {
		f.is(tt.short, tt.call)
		got, err := client.Call(t.Context(), "weather/today", nil)
		if none := tt.short == tt.call; none != (err != nil) || none && rpc.AsError(err).Code != rpc.CodeMethodNotFound {
			t.Errorf("%s: %s, %v", tt.asked, got, err)
		}
		if asked := f.is("", ""); asked != tt.asked {
			t.Errorf("asked %q, want %q", asked, tt.asked)
		}
	}
}
