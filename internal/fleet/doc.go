// Package fleet contains the registry's decisions as pure data: what the bridges and services of a mesh have reported,
// and what follows from it. Nothing in it does I/O, starts a goroutine or reads a clock; the time is an argument. The
// package internal/registry passes events to it and carries out its results.
//
// Layer: below the programs, above pkg/mesh, whose messages and documents it uses (see layers_test.go).
package fleet
