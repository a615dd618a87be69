package remote

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"time"
)

// eventReader parses a stream of server-sent events (WHATWG HTML, "Server-sent events"). It stores one event at a time. A
// carriage return alone does not end a line, unlike in the standard.
type eventReader struct {
	r    *bufio.Reader
	body io.Closer
	max  int64

	id    string        // the last id of a complete event, from which the stream can be resumed
	retry time.Duration // set by the server; 0: not set

	data   []byte
	lines  int    // data fields of the current event
	nextID string // its id, or the previous one
	name   string // its type
}

const (
	maxField = 1 << 10 // of an id, a retry, a type: longer ones are ignored
	minRetry = 100 * time.Millisecond
	maxRetry = time.Minute
)

// byteOrderMark may be at the start of a stream.
var byteOrderMark = []byte("\ufeff")

// longEventError is an event over the limit. size is how much of it had arrived.
type longEventError struct{ size, limit int64 }

func (e *longEventError) Error() string {
	return fmt.Sprintf("an event of at least %d bytes is over the limit of %d", e.size, e.limit)
}

func newEventReader(body io.ReadCloser, max int64) *eventReader {
	return &eventReader{r: bufio.NewReaderSize(body, 16<<10), body: body, max: max}
}

// reset continues with another stream.
func (e *eventReader) reset(body io.ReadCloser) {
	e.body.Close()
	e.r.Reset(body)
	e.body = body
	e.clear()
}

func (e *eventReader) close() { e.body.Close() }

func (e *eventReader) clear() {
	if cap(e.data) > 256<<10 {
		e.data = nil
	}
	e.data, e.lines, e.nextID, e.name = e.data[:0], 0, e.id, ""
}

// next returns the data of the next message, which is valid until the next call. It skips events of other types and
// events without data. An event at the end of the stream counts even if it is incomplete, as long as it has data:
// parsing the JSON shows whether that is complete. After a *longEventError the stream must not be read further, since
// the event may be endless.
func (e *eventReader) next() ([]byte, error) {
	e.clear()
	for {
		blank, err := e.line()
		if err != nil && (err != io.EOF || e.lines == 0) {
			return nil, err
		}
		if !blank && err == nil {
			continue
		}
		if err == nil {
			e.id = e.nextID
		}
		if e.lines > 0 && len(bytes.TrimSpace(e.data)) > 0 && (e.name == "" || e.name == "message") {
			return e.data, nil
		}
		if err != nil {
			return nil, err
		}
		e.clear()
	}
}

// skip makes a resumed stream continue after an event that was too long, if the event's id came before its data.
// Otherwise the id is cleared and the next stream starts with the server's newest messages: resuming from the previous
// id would return the same event again.
func (e *eventReader) skip() {
	if e.nextID == e.id {
		e.nextID = ""
	}
	e.id = e.nextID
}

// line reads one line into the event. blank means that the event ends.
func (e *eventReader) line() (blank bool, err error) {
	line, long, err := e.read()
	name, value, colon := bytes.Cut(line, []byte{':'})
	name = bytes.TrimPrefix(name, byteOrderMark)
	isData := string(name) == "data"
	if err != nil && !(isData && colon) { // data that are cut may be complete JSON
		return false, err
	}
	value = bytes.TrimPrefix(value, []byte{' '})
	if !isData {
		e.field(name, value)
		return len(name) == 0 && !colon, nil
	}
	if e.lines++; e.lines > 1 {
		e.data = append(e.data, '\n')
	}
	if size := int64(len(e.data) + len(value)); size > e.max {
		return false, &longEventError{size, e.max}
	}
	if long && e.lines == 1 {
		e.data = value // the buffer itself: a large event is not stored twice
	} else {
		e.data = append(e.data, value...)
	}
	return false, err
}

// read returns the next line without the line end, or what there is of it before an error. It is valid until the next call.
// A data field that is longer than the buffer of r is stored in data, if data is empty. Of another line only the beginning is returned
// if it is too long for a field.
func (e *eventReader) read() (line []byte, long bool, err error) {
	line, err = e.r.ReadSlice('\n')
	if long = err == bufio.ErrBufferFull; long {
		var whole []byte
		if e.lines == 0 {
			whole = e.data[:0]
		}
		whole = append(whole, line...)
		isData := bytes.HasPrefix(bytes.TrimPrefix(whole, byteOrderMark), []byte("data:"))
		for err == bufio.ErrBufferFull {
			if line, err = e.r.ReadSlice('\n'); isData || len(whole) <= 2*maxField {
				whole = append(whole, line...)
			}
			if size := int64(len(e.data) + len(whole)); isData && size > e.max+maxField {
				return nil, false, &longEventError{size, e.max}
			}
		}
		line = whole
	}
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte{'\n'}), []byte{'\r'}), long, err
}

// field applies a field other than data.
func (e *eventReader) field(name, value []byte) {
	if len(value) >= maxField {
		return
	}
	switch text := string(value); string(name) {
	case "id":
		if headerSafe(text) {
			e.nextID = text
		}
	case "event":
		e.name = text
	case "retry":
		if ms, err := strconv.ParseUint(text, 10, 32); err == nil {
			e.retry = min(max(time.Duration(ms)*time.Millisecond, minRetry), maxRetry)
		}
	}
}

// headerSafe reports whether s is valid in a header without encoding.
func headerSafe(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}
