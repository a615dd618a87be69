package door

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/extmesh/extmesh/internal/wire"
)

// assignNames gives each item a name that no other item has. The result depends on the items only, not on their order.
func assignNames(items []*item, mode NameMode, limit int) map[*item]string {
	names := make(map[*item]string, len(items))
	for _, it := range items {
		names[it] = it.registered
	}
	if mode == NamesOwn {
		useOwnNames(items, names, limit)
	}
	for it, name := range names {
		if len(name) > limit {
			names[it] = shorten(name, it.key, limit, 6)
		}
	}
	for digits := 10; ; digits += 4 { // two shortened names that are equal need longer hashes
		equal := clashes(names)
		if len(equal) == 0 || digits > limit-2 {
			return names
		}
		for _, it := range equal {
			names[it] = shorten(it.registered, it.key, limit, digits)
		}
	}
}

// useOwnNames replaces the names of the tools whose own name is unique, ignoring case, and valid with every model provider.
func useOwnNames(items []*item, names map[*item]string, limit int) {
	count := make(map[string]int, 2*len(items))
	for _, it := range items {
		count[strings.ToLower(it.key.Tool)]++
		if it.registered != it.key.Tool {
			count[strings.ToLower(it.registered)]++
		}
	}
	for _, it := range items {
		if own := it.key.Tool; count[strings.ToLower(own)] == 1 && isPortable(own, limit) {
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
func clashes(names map[*item]string) []*item {
	count := make(map[string]int, len(names))
	for _, name := range names {
		count[name]++
	}
	var out []*item
	for it, name := range names {
		if count[name] > 1 {
			out = append(out, it)
		}
	}
	return out
}
