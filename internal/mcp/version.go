package mcp

import "slices"

// Modern is the version of the modern era.
const Modern = "2026-07-28"

// legacy are the versions of the legacy era, the newest first.
var legacy = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// LatestLegacy is the newest version of the legacy era.
const LatestLegacy = "2025-11-25"

// WithoutHeader is the version of a legacy HTTP request that has no MCP-Protocol-Version header.
const WithoutHeader = "2025-03-26"

// IsLegacy reports whether v is a version of the legacy era.
func IsLegacy(v string) bool { return slices.Contains(legacy, v) }

// Negotiate returns the version with which a server answers an initialize request: the requested one if it belongs to
// the legacy era, otherwise the newest of that era.
func Negotiate(requested string) string {
	if IsLegacy(requested) {
		return requested
	}
	return LatestLegacy
}

// Era is the era of one request.
type Era bool

// The eras.
const (
	EraLegacy Era = false
	EraModern Era = true
)

func (e Era) String() string {
	if e == EraModern {
		return "modern"
	}
	return "legacy"
}
