package natsconn

import (
	"errors"
	"regexp"

	"github.com/nats-io/nats.go"
)

var deniedSubscription = regexp.MustCompile(`Subscription to "([^"]+)"`)

// DeniedSubscription returns the subject to which the user may not subscribe, from an error passed to nats.ErrorHandler.
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
