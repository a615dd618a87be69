package wire

import (
	"crypto/sha256"
	"encoding/hex"
)

// ListDigest identifies the content of a list that is not in the catalog itself, as AnnounceDigest an announcement.
func ListDigest(answer []byte) string { return AnnounceDigest(answer) }

// AnnounceDigest identifies an announcement in heartbeats: the first 16 hex digits of the SHA-256 of its text. A registry
// that has received another announcement, or none, requests it.
func AnnounceDigest(announcement []byte) string {
	sum := sha256.Sum256(announcement)
	return hex.EncodeToString(sum[:8])
}
