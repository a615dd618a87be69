//go:build !linux

package daemon

func processorTime() (float64, bool)  { return 0, false }
func virtualMemory() (float64, bool)  { return 0, false }
func residentMemory() (float64, bool) { return 0, false }
func openFiles() (float64, bool)      { return 0, false }
func maxFiles() (float64, bool)       { return 0, false }
