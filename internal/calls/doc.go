// Package calls keeps what a bridge remembers of the calls that it has answered: counts and durations for each tool, the
// last failures, and the slowest calls. Everything is bounded, and nothing contains arguments or results.
package calls
