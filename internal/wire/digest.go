package wire

import (
	"crypto/sha256"
	"encoding/hex"
)

// AnnounceDigest is what beats say of an announcement, as it was published: the first 16 hex digits of its SHA-256. A
// registry that has heard another one, or none, asks for it.
func AnnounceDigest(announcement []byte) string {
	sum := sha256.Sum256(announcement)
	return hex.EncodeToString(sum[:8])
}
