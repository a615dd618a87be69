package natsconn

import (
	"errors"
	"regexp"

	"github.com/nats-io/nats.go"
)

var deniedSubscription = regexp.MustCompile(`Subscription to "([^"]+)"`)

// DeniedSubscription is the subject that NATS, by an error told to nats.ErrorHandler, does not let the user listen on.
func DeniedSubscription(err error) (subject string, ok bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	m := deniedSubscription.FindStringSubmatch(err.Error())
	if m == nil {
		return "", false
	}
	return m[1], true
}
