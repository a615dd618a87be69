//go:build !unix

package document

const nonblock = 0
