package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/extmesh/extmesh/internal/load"
)

// measure runs op from so many callers for a while; one call that fails fails it all.
func measure(callers int, span time.Duration, op func() error) (load.Result, error) {
	var failed error
	r := load.Run(context.Background(), load.Options{Callers: callers, For: span, Kind: func(err error) string {
		return err.Error()
	}}, func(context.Context) error { return op() })
	for kind := range r.Errors {
		failed = errors.Join(failed, errors.New(kind))
	}
	return r, failed
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}
