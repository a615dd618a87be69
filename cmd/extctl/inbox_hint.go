package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/extmesh/extmesh/internal/daemon"
	"github.com/extmesh/extmesh/internal/terminal"
)

// errInboxDenied is the cause with which a command's context ends when NATS does not allow it to receive any reply.
var errInboxDenied = errors.New("replies are not allowed")

// explainInbox is the error of a user that may not receive replies under the inbox prefix in use. The hint has the prefix
// that the server allows, if it is one of those that configurations usually give to a user.
func (s *session) explainInbox(t daemon.Target) error {
	who := "this user"
	users := t.Users()
	if len(users) > 0 {
		who = "the user " + users[0]
	}
	f := fail(exitDenied, "NATS does not allow %s to receive replies on %s.>: %w", who, t.InboxPrefix(), nats.ErrPermissionViolation)
	f.err = &reworded{fmt.Sprintf("NATS does not allow %s to receive replies on %s.>", who, t.InboxPrefix()), f.err}
	if prefix := s.allowedInbox(users); prefix != "" {
		f.hint = "this server gives each user reply subjects of its own: add --inbox-prefix " + terminal.ShellWord(prefix) + ", or set inbox_prefix in the context of the nats command"
		f.data = map[string]any{"inbox_prefix": prefix}
		return f
	}
	f.hint = "this server gives each user reply subjects of its own: pass the prefix of this user's with --inbox-prefix; the server's configuration has it, often as _INBOX.USER"
	return f
}

// inboxProbe is the time limit of the search for the inbox prefix that the server allows.
const inboxProbe = 2 * time.Second

// allowedInbox tries the inbox prefixes that configurations usually have for a user, and returns the first one that the
// server allows; "" if there is none.
func (s *session) allowedInbox(users []string) string {
	type try struct {
		prefix string
		sub    *nats.Subscription
	}
	var tries []try
	for _, user := range users {
		if strings.ContainsAny(user, ".*> \t\r\n") {
			continue
		}
		for _, prefix := range []string{"_INBOX." + user, "_INBOX_" + user, user + "._INBOX"} {
			sub, err := s.nc.SubscribeSync(prefix + ".>")
			if err != nil {
				return ""
			}
			defer func() { _ = sub.Unsubscribe() }() // fails only if the connection is closed
			tries = append(tries, try{prefix, sub})
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), inboxProbe)
	defer cancel()
	if len(tries) == 0 || s.nc.FlushWithContext(ctx) != nil { // the server replies to it after it has refused subscriptions
		return ""
	}
	for _, t := range tries {
		if _, err := t.sub.NextMsg(time.Nanosecond); errors.Is(err, nats.ErrTimeout) {
			return t.prefix
		}
	}
	return ""
}
