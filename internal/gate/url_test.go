package gate

import (
	"slices"
	"testing"
)

func TestURLSecrets(t *testing.T) {
	for value, want := range map[string][]string{
		"nats://bridge-0:hunter22@nats:4222":                       {"hunter22"},
		"nats://a:secret-a@n0:4222,nats://b:secret-b@n1:4222":      {"secret-a", "secret-b"},
		"nats://s3cr3t-token@nats:4222":                            {"s3cr3t-token"},
		"postgres://app:p%40ss@db/app?sslmode=disable":             {"p%40ss", "p@ss"},
		"postgres://app:p/ss@db/app":                               {"p/ss"},
		"postgresql+asyncpg://app:pa@ss@db/app":                    {"pa@ss"},
		"redis://:hunter22@cache:6379/0":                           {"hunter22"},
		"http://proxy-user:8080secret@proxy:3128":                  {"8080secret"},
		"--proxy=http://u:hunter22@proxy:3128 --quiet":             {"hunter22"},
		`{"url":"amqp://guest:hunter22@mq/","x":"http://h:1/a@b"}`: {"hunter22"},
		"":                                    nil,
		"https://example.com/a:b@c":           nil,
		"http://localhost:8080/users/me@here": nil,
		"http://localhost:8080?to=me@here":    nil,
		"http://[::1]:8080/a@b":               nil,
		"ssh://git@example.com:22/repo":       nil,
		"https://example.com?x=a:b@c":         nil,
		"user:password@tcp(db:3306)/app":      nil,
		"nats://nats-0:4222,nats://nats-1":    nil,
		"unix:path=/run/user/1000/bus":        nil,
		"://":                                 nil,
		"x://:@":                              nil,
	} {
		if have := urlSecrets(value); !slices.Equal(have, want) {
			t.Errorf("%q: %q, want %q", value, have, want)
		}
	}
}

func TestTokens(t *testing.T) {
	for value, want := range map[string][]string{
		"":                                  nil,
		"Bearer ":                           nil,
		"it uses Basic authentication":      nil,
		"Basic authentication":              nil,
		`-H "Authorization: Bearer $TOKEN"`: nil,
		"Bearer 12|abcdef":                  {"12|abcdef"},
		"basic  dXNlcjpwYXNz":               {"dXNlcjpwYXNz"},
		`{"Authorization": "Bearer ntn_1", "Notion-Version": "2022-06-28"}`: {"ntn_1"},
		`"{\"Authorization\":\"Bearer ntn_1\"}"`:                            {"ntn_1"},
		"Authorization=Basic%20YTpi,X-Authorization: Bearer t1":             {"YTpi", "t1"},
	} {
		if have := Tokens(value); !slices.Equal(have, want) {
			t.Errorf("%s: have %q, want %q", value, have, want)
		}
	}
}
