// Package aside keeps the stacks of long-lived goroutines small.
//
// A goroutine's stack grows by doubling and shrinks only while less than a quarter of it is in use. A goroutine that
// was once deep therefore keeps its large stack while it waits, for days, a few frames from its start. With a
// thousand such goroutines it pays to run the deep initial work on separate goroutines.
package aside

// Run runs f on a new goroutine and returns when f has returned. A panic in f ends the program even if the caller
// recovers; f must not call runtime.Goexit.
func Run(f func()) {
	done := make(chan struct{})
	go func() { // owned by Run, which waits; ends when f returns
		defer close(done)
		f()
	}()
	<-done
}
