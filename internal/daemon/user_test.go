package daemon

import (
	"encoding/base64"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
)

func TestUsers(t *testing.T) {
	jwt := "x." + base64.RawURLEncoding.EncodeToString([]byte(`{"name":"ada","sub":"UABC"}`)) + ".y"
	userJWT := func(jwt string) nats.Options {
		return nats.Options{UserJWT: func() (string, error) { return jwt, nil }}
	}
	for _, tt := range []struct {
		target Target
		want   []string
		any    bool
	}{
		{Target{Servers: []string{"nats://a:1"}}, nil, false},
		{Target{Servers: []string{"nats://op:secret@a:1", "nats://op:secret@b:1"}}, []string{"op"}, true},
		{Target{Servers: []string{"nats://token@a:1"}}, nil, true},
		{Target{base: nats.Options{User: "op"}}, []string{"op"}, true},
		{Target{base: userJWT(jwt)}, []string{"ada", "UABC"}, true},
		{Target{base: userJWT("x.!.y")}, nil, true},
		{Target{base: userJWT("nothing")}, nil, true},
		{Target{base: nats.Options{Nkey: "U"}}, nil, true},
	} {
		if got := tt.target.Users(); !slices.Equal(got, tt.want) || tt.target.HasCredentials() != tt.any {
			t.Errorf("%v: %v, %v; want %v, %v", tt.target.Servers, got, tt.target.HasCredentials(), tt.want, tt.any)
		}
	}
}
