//go:build !unix

package rpc

import "os"

type tryWriter struct{ *os.File }
