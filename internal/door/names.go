package door

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/extmesh/extmesh/internal/wire"
)

// named identifies a tool or a prompt.
type named struct {
	key        wire.ToolKey
	registered string
}

func (n *named) identity() *named { return n }

// nameable is a tool or a prompt.
type nameable interface {
	comparable
	identity() *named
}

// assignNames gives each item a name that no other item has. The result depends on the items only, not on their order.
func assignNames[T nameable](items []T, mode NameMode, limit int) map[T]string {
	names := make(map[T]string, len(items))
	for _, it := range items {
		names[it] = it.identity().registered
	}
	if mode == NamesOwn {
		useOwnNames(items, names, limit)
	}
	for it, name := range names {
		if len(name) > limit {
			names[it] = shorten(name, it.identity().key, limit, 6)
		}
	}
	for digits := 10; ; digits += 4 { // two shortened names that are equal need longer hashes
		equal := clashes(names)
		if len(equal) == 0 || digits > limit-2 {
			return names
		}
		for _, it := range equal {
			n := it.identity()
			names[it] = shorten(n.registered, n.key, limit, digits)
		}
	}
}

// useOwnNames replaces the names of the tools whose own name is unique, ignoring case, and valid with every model provider.
func useOwnNames[T nameable](items []T, names map[T]string, limit int) {
	count := make(map[string]int, 2*len(items))
	for _, it := range items {
		n := it.identity()
		count[strings.ToLower(n.key.Tool)]++
		if n.registered != n.key.Tool {
			count[strings.ToLower(n.registered)]++
		}
	}
	for _, it := range items {
		if own := it.identity().key.Tool; count[strings.ToLower(own)] == 1 && isPortable(own, limit) {
			names[it] = own
		}
	}
}

// isPortable reports whether all model providers accept a tool's name.
func isPortable(name string, limit int) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return name != "" && len(name) <= limit
}

// shorten cuts a name and appends digits of a hash of the tool's identity.
func shorten(name string, key wire.ToolKey, limit, digits int) string {
	sum := sha256.Sum256([]byte(key.ID + "\x00" + key.Tool))
	return name[:min(len(name), limit-digits-1)] + "_" + hex.EncodeToString(sum[:])[:digits]
}

// clashes returns the items whose name another item has, too.
func clashes[T nameable](names map[T]string) []T {
	count := make(map[string]int, len(names))
	for _, name := range names {
		count[name]++
	}
	var out []T
	for it, name := range names {
		if count[name] > 1 {
			out = append(out, it)
		}
	}
	return out
}
