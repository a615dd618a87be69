//go:build !unix

package discovery

const nonblock = 0
