// Package aside keeps the stacks of long-lived goroutines small.
//
// A goroutine's stack grows by doubling and shrinks only while less than a quarter of it is in use, so one that was deep
// once keeps the stack for it while it waits, for days, a few frames from its start. What a thousand of them have
// to do once, to get to where they wait, is done aside.
package aside

// Run runs f on a goroutine of its own and returns when f has. A panic of f's is the program's end, as it would have
// been in the caller without a recover; runtime.Goexit in f is not for here.
func Run(f func()) {
	done := make(chan struct{})
	go func() { // owned by Run, which waits; ends when f returns
		defer close(done)
		f()
	}()
	<-done
}
