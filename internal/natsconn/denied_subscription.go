package natsconn

import (
	"errors"
	"regexp"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

var (
	deniedSubscription = regexp.MustCompile(`Subscription to "([^"]+)"`)
	deniedPublish      = regexp.MustCompile(`Publish to "([^"]+)"`)
)

// DeniedSubscription returns the subject to which the user may not subscribe, from an error passed to nats.ErrorHandler.
func DeniedSubscription(err error) (subject string, ok bool) {
	return deniedSubject(deniedSubscription, err)
}

// OnDenied registers f until remove. It is called with each subject to which NATS denies a subscription, by the goroutine that
// runs the connection's callbacks, and may still be running when remove returns.
func (t *Traffic) OnDenied(f func(subject string)) (remove func()) {
	if t == nil {
		return func() {}
	}
	t.onDenied.Store(&f, nil)
	return func() { t.onDenied.Delete(&f) }
}

// handleDenial passes on that NATS has denied a message or a subscription, if err reports that.
func (t *Traffic) handleDenial(err error) {
	if subject, ok := deniedSubject(deniedPublish, err); ok {
		t.denials.add(subject, time.Now())
	}
	if subject, ok := DeniedSubscription(err); ok {
		t.onDenied.Range(func(f, _ any) bool {
			(*f.(*func(string)))(subject)
			return true
		})
	}
}

func deniedSubject(text *regexp.Regexp, err error) (subject string, ok bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	m := text.FindStringSubmatch(err.Error())
	if m == nil {
		return "", false
	}
	return m[1], true
}

// denials are the subjects on which NATS has denied messages, and when it did so last. The connection itself keeps only the last
// error.
type denials struct {
	mu sync.Mutex
	at map[string]time.Time
}

// maxDenials limits the subjects.
const maxDenials = 1000

func (d *denials) add(subject string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at == nil || len(d.at) >= maxDenials {
		d.at = map[string]time.Time{}
	}
	d.at[subject] = now
}

// DeniedSince reports whether NATS has denied a message on subject since the given time.
func (t *Traffic) DeniedSince(subject string, since time.Time) bool {
	if t == nil {
		return false
	}
	t.denials.mu.Lock()
	defer t.denials.mu.Unlock()
	return t.denials.at[subject].After(since)
}
