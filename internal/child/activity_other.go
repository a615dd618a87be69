//go:build !linux

package child

func readActivity(int) Activity { return Activity{} }
