//go:build !linux || race

package daemon

import "github.com/nats-io/nats.go"

// useRaw is worth something on Linux only. The race detector has to see system calls: they order what is done on either
// side.
func useRaw(*nats.Options) {}
