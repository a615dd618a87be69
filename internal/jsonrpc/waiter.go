package jsonrpc

import "encoding/json"

// Waiter is a Sink for callers that wait for one Exchange: they start the exchange, wait for Done, and read the Result.
// Make it with NewWaiter, for one exchange.
type Waiter struct {
	done   chan struct{}
	result json.RawMessage
	err    error
}

// NewWaiter makes a Waiter.
func NewWaiter() *Waiter { return &Waiter{done: make(chan struct{})} }

// Deliver implements Sink.
func (w *Waiter) Deliver(_ *Exchange, r Reply) {
	result, err := r.Result()
	w.result, w.err = append(json.RawMessage(nil), result...), err
	close(w.done)
}

// Done is closed when the exchange has ended.
func (w *Waiter) Done() <-chan struct{} { return w.done }

// Result waits for the end and returns the answer's result, which the caller may keep, or an *Error.
func (w *Waiter) Result() (json.RawMessage, error) {
	<-w.done
	return w.result, w.err
}
