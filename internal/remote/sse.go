package remote

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"time"
)

// eventReader parses a stream of server-sent events (WHATWG HTML, "Server-sent events"). It stores the data of one
// event at a time, and at most maxField bytes of each other field.
type eventReader struct {
	r    *bufio.Reader
	body io.Closer
	max  int64

	id    string        // the last id of a complete event, from which the stream can be resumed
	retry time.Duration // set by the server; 0: not set

	skipLF bool // the previous line ended with a carriage return
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
	e.body, e.skipLF = body, false
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
	var name, value []byte
	named, spaced := false, false
	for {
		p, ended, err := e.piece()
		if err != nil {
			return false, err
		}
		if !named {
			head, rest, colon := bytes.Cut(p, []byte{':'})
			name, p = appendField(name, head), rest
			if named = colon || ended; !named {
				continue
			}
			name = bytes.TrimPrefix(name, []byte("\ufeff")) // a byte order mark at the start of the stream
			if blank = ended && !colon && len(name) == 0; string(name) == "data" {
				if e.lines++; e.lines > 1 {
					e.data = append(e.data, '\n')
				}
			}
		}
		if !spaced && len(p) > 0 {
			spaced, p = true, bytes.TrimPrefix(p, []byte{' '})
		}
		if string(name) != "data" {
			value = appendField(value, p)
		} else if size := int64(len(e.data) + len(p)); size > e.max {
			return false, &longEventError{size, e.max}
		} else {
			e.data = append(e.data, p...)
		}
		if ended {
			e.field(string(name), string(value))
			return blank, nil
		}
	}
}

// appendField appends p to a field other than data, up to maxField bytes.
func appendField(dst, p []byte) []byte { return append(dst, p[:min(len(p), maxField-len(dst))]...) }

// field applies a complete field other than data.
func (e *eventReader) field(name, value string) {
	if len(value) == maxField {
		return
	}
	switch name {
	case "id":
		if headerSafe(value) {
			e.nextID = value
		}
	case "event":
		e.name = value
	case "retry":
		if ms, err := strconv.ParseUint(value, 10, 32); err == nil {
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

// piece returns the next bytes of the current line, without the line end; ended reports that they are the last of it.
// They are valid until the next call.
func (e *eventReader) piece() (p []byte, ended bool, err error) {
	if _, err := e.r.Peek(1); err != nil {
		return nil, false, err
	}
	p, _ = e.r.Peek(e.r.Buffered())
	if e.skipLF {
		e.skipLF = false
		if p[0] == '\n' {
			e.r.Discard(1)
			return e.piece()
		}
	}
	i := bytes.IndexAny(p, "\r\n")
	if i < 0 {
		e.r.Discard(len(p))
		return p, false, nil
	}
	e.skipLF = p[i] == '\r'
	e.r.Discard(i + 1)
	return p[:i], true, nil
}
