package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
)

// allFailed is the error if the request to every bridge failed. Forty bridges that fail for the same reason are one line.
func (s *session) allFailed(bridges []string, errs []error) error {
	type group struct {
		err     error // of the first bridge
		bridges []string
	}
	var order []string
	groups := map[string]*group{}
	for n, err := range errs {
		reason := strings.ReplaceAll(err.Error(), bridges[n], "BRIDGE")
		if errors.Is(err, nats.ErrPermissionViolation) {
			reason = "denied"
		}
		if groups[reason] == nil {
			groups[reason], order = &group{err: err}, append(order, reason)
		}
		groups[reason].bridges = append(groups[reason].bridges, bridges[n])
	}
	var out []error
	for _, reason := range order {
		g := groups[reason]
		switch n := len(g.bridges); {
		case n == 1:
			out = append(out, g.err)
		case reason == "denied":
			text := fmt.Sprintf("all %d bridges: NATS does not allow this user to send requests to bridges (%s)", n, s.prefix.Control("*"))
			if n < len(bridges) {
				text = strings.Replace(text, "all ", "", 1)
			}
			out = append(out, &reworded{text, g.err})
		default:
			out = append(out, fmt.Errorf("%w; the same for %s", g.err, moreBridges(g.bridges[1:])))
		}
	}
	return errors.Join(out...)
}

// moreBridges names bridges: the names of a few, the number of many.
func moreBridges(names []string) string {
	if len(names) > 3 {
		return fmt.Sprintf("%d other bridges", len(names))
	}
	return strings.Join(names, ", ")
}
