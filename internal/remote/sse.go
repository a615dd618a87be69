package remote

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"time"
)

// eventReader takes a stream of server-sent events apart (WHATWG HTML, "Server-sent events"). It holds one
// event's data at a time and a field name's worth of everything else.
type eventReader struct {
	r    *bufio.Reader
	body io.Closer
	max  int64

	id    string        // of the last complete event that had one: where to read on
	retry time.Duration // as the server asked for it; 0: it did not

	skipLF bool // the line end before was a carriage return
	data   []byte
	lines  int    // data fields of the present event
	nextID string // its id, or that before
	name   string // its type
}

const (
	maxField = 1 << 10 // of an id, a retry, a type: longer ones do not count
	minRetry = 100 * time.Millisecond
	maxRetry = time.Minute
)

// longEventError is an event over the limit. size is how much of it had come.
type longEventError struct{ size, limit int64 }

func (e *longEventError) Error() string {
	return fmt.Sprintf("an event of at least %d bytes is over the limit of %d", e.size, e.limit)
}

func newEventReader(body io.ReadCloser, max int64) *eventReader {
	return &eventReader{r: bufio.NewReaderSize(body, 16<<10), body: body, max: max}
}

// reset goes on with another stream.
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

// next returns the data of the next message, valid until the call after. Events of another type and without
// data are left out. An event that the stream's end cuts off counts, as long as it has data: whether that is
// whole, its JSON will show. A *longEventError ends the reading: its event may have no end.
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

// skip lets the reading go on behind an event that was too long, where it had an id of its own in front. Without
// one that is behind what the server says next: from the last id on it would say the same again.
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
			name = bytes.TrimPrefix(name, []byte("\ufeff")) // which may open the stream
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

// appendField appends p as far as there is room in a field that is no data.
func appendField(dst, p []byte) []byte { return append(dst, p[:min(len(p), maxField-len(dst))]...) }

// field takes over a whole line other than data.
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

// headerSafe reports whether s can go into a header as it is.
func headerSafe(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// piece returns some more bytes of the present line, without its end; ended says that they are its last. They
// are valid until the next call.
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
