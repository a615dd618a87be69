package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"sync/atomic"
)

// DefaultMaxLine is the default of Options.MaxLine: 64 MiB.
const DefaultMaxLine = 64 << 20

// LongLineError means that a line was over the limit, or that Options.Reserve refused the memory for it (NoMemory). All
// Size bytes were discarded. ID is the raw top-level id found in the line, or nil.
type LongLineError struct {
	Size, Limit int64
	ID          []byte
	NoMemory    bool
}

func (e *LongLineError) Error() string {
	if e.NoMemory {
		return fmt.Sprintf("no memory was available for a line of %d bytes", e.Size)
	}
	return fmt.Sprintf("a line of %d bytes is over the limit of %d", e.Size, e.Limit)
}

// endlessLine is the length after which a line counts as endless, unless four times its limit is more. An endless line
// ends the stream.
const endlessLine = 256 << 20

type endlessLineError struct{ size int64 }

func (e endlessLineError) Error() string {
	return fmt.Sprintf("a line of more than %d MiB does not end", e.size>>20)
}

// LineReader splits a stream into lines, for one goroutine. Its memory is limited whatever the stream contains, and
// shrinks after a large line.
type LineReader struct {
	r     io.Reader
	small []byte // the buffer that is kept

	max      int
	endless  int64              // a longer line counts as endless
	reserve  func(n int64) bool // Options.Reserve
	reserved int64              // the bytes that it has granted: the size of a buffer over keepBuffer

	buf   []byte // buf[start:end] is read and not yet returned
	start int
	end   int
	seen  int // buf[start:start+seen] contains no newline
	err   error
	begun bool           // the start of the stream was checked for a byte order mark
	cut   bool           // the last returned line ended with the stream, not with a newline
	count *atomic.Uint64 // bytes read; nil: not counted
}

// NewLineReader returns a reader of lines of at most limit bytes; 0 means DefaultMaxLine.
func NewLineReader(r io.Reader, limit int) *LineReader {
	if limit <= 0 {
		limit = DefaultMaxLine
	}
	return &LineReader{r: r, max: limit, endless: max(endlessLine, 4*int64(limit)), small: make([]byte, smallBuffer)}
}

// byteOrderMark is the UTF-8 encoding of U+FEFF, which PowerShell and .NET write before their first line.
var byteOrderMark = []byte("\ufeff")

// Next returns the next line without its end ("\n" or "\r\n") and without a byte order mark at the beginning of the
// stream; it is valid until the next call. A last line without a newline is returned too (see Cut). A line over the
// limit is discarded and returns a *LongLineError, after which reading can continue. Any other error ends the stream.
func (l *LineReader) Next() ([]byte, error) {
	line, err := l.nextLine()
	if err == nil && !l.begun {
		l.begun = true
		line = bytes.TrimPrefix(line, byteOrderMark)
	}
	return line, err
}

// Cut reports whether the last line that Next returned ended with the stream, and not with a newline.
func (l *LineReader) Cut() bool { return l.cut }

func (l *LineReader) nextLine() ([]byte, error) {
	for {
		if i := bytes.IndexByte(l.buf[l.start+l.seen:l.end], '\n'); i >= 0 {
			at := l.start + l.seen + i
			line := l.buf[l.start:at:at]
			l.start, l.seen = at+1, 0
			if len(line) > l.max {
				return nil, l.tooLong(line)
			}
			return bytes.TrimSuffix(line, []byte{'\r'}), nil
		}
		l.seen = l.end - l.start
		if l.seen > l.max {
			return nil, l.discard(false)
		}
		if l.err != nil {
			if l.seen == 0 {
				l.dropBuffer()
				return nil, l.err
			}
			line := l.buf[l.start:l.end:l.end]
			l.start, l.end, l.seen, l.cut = 0, 0, 0, true
			return bytes.TrimSuffix(line, []byte{'\r'}), nil
		}
		if !l.makeRoom() {
			return nil, l.discard(true)
		}
		l.fill()
	}
}

// fill reads once.
func (l *LineReader) fill() {
	for range 100 {
		n, err := l.r.Read(l.buf[l.end:])
		if n < 0 || n > len(l.buf)-l.end {
			n, err = 0, fmt.Errorf("a read of %d bytes into %d", n, len(l.buf)-l.end)
		}
		l.end += n
		if l.count != nil {
			l.count.Add(uint64(n))
		}
		if l.err = err; n > 0 || err != nil {
			return
		}
	}
	l.err = io.ErrNoProgress
}

// makeRoom makes room to read into: it moves the unread bytes to the front, or grows the buffer, or releases a buffer that
// is large because of an earlier line. It returns false if Options.Reserve refuses the memory for a larger buffer.
func (l *LineReader) makeRoom() bool {
	switch {
	case l.start == l.end:
		// A large buffer stays until the last read shows that it is larger than needed.
		full := l.end > 0 && l.end == len(l.buf)
		if l.buf == nil || len(l.buf) > keepBuffer || len(l.buf) > smallBuffer && l.end <= smallBuffer {
			l.dropBuffer()
			l.buf = l.small
		}
		l.start, l.end, l.seen = 0, 0, 0
		if full && len(l.buf) < readBuffer {
			return l.move(2 * len(l.buf))
		}
	case l.start > len(l.buf)/2 && len(l.buf) > keepBuffer && l.end-l.start < readBuffer:
		return l.move(readBuffer)
	case l.end < len(l.buf):
	case l.start > len(l.buf)/2:
		l.end = copy(l.buf, l.buf[l.start:l.end])
		l.start = 0
	default:
		return l.move(min(2*len(l.buf), l.max+readBuffer))
	}
	return true
}

// move copies the unread bytes to a buffer of another size, unless the memory for it is refused. Both buffers exist
// during the copy.
func (l *LineReader) move(size int) bool {
	more := int64(0)
	if size > keepBuffer && l.reserve != nil {
		if more = int64(size); !l.reserve(more) {
			return false
		}
	}
	to := borrow(size)
	n := copy(to, l.buf[l.start:l.end])
	giveBack(l.buf)
	l.unreserve()
	l.buf, l.start, l.end, l.reserved = to, 0, n, more
	return true
}

// unreserve returns the bytes that Options.Reserve has granted, after the large buffer was released.
func (l *LineReader) unreserve() {
	if l.reserved > 0 {
		l.reserve(-l.reserved)
		l.reserved = 0
	}
}

// detach gives the buffer of the last returned line to the caller, and copies its unread bytes to a new one. The caller
// calls unreserve when it has released the buffer.
func (l *LineReader) detach() (buf []byte, unreserve func()) {
	buf, rest := l.buf, l.buf[l.start:l.end]
	reserve, granted := l.reserve, l.reserved
	l.reserved = 0
	unreserve = func() {
		if granted > 0 {
			reserve(-granted)
		}
	}
	l.buf, l.start, l.end, l.seen = nil, 0, len(rest), 0
	if len(rest) > 0 {
		l.buf = borrow(len(rest))
		copy(l.buf, rest)
	}
	return buf, unreserve
}

// dropBuffer returns an empty buffer to its pool.
func (l *LineReader) dropBuffer() {
	giveBack(l.buf)
	l.unreserve()
	l.buf, l.start, l.end, l.seen = nil, 0, 0, 0
}

func (l *LineReader) tooLong(line []byte) error {
	var e lineEnds
	e.add(line)
	return &LongLineError{Size: int64(len(line)), Limit: int64(l.max), ID: e.id()}
}

// discard discards the rest of a line that is too long, but finds its id, which some SDKs write last. An
// endless line ends the stream.
func (l *LineReader) discard(noMemory bool) error {
	var e lineEnds
	size := int64(0)
	for {
		chunk := l.buf[l.start:l.end]
		i := bytes.IndexByte(chunk, '\n')
		if i >= 0 {
			chunk = chunk[:i]
		}
		e.add(chunk)
		size += int64(len(chunk))
		l.start, l.seen = l.start+len(chunk), 0
		if i >= 0 {
			l.start++
			break
		}
		if l.err != nil {
			break
		}
		if size > l.endless {
			l.err = endlessLineError{size}
			break
		}
		l.makeRoom() // the buffer is empty now, and is released if it is large
		l.fill()
	}
	return &LongLineError{Size: size, Limit: int64(l.max), ID: e.id(), NoMemory: noMemory}
}

// lineEnds are the first and the last bytes of a line that is never in memory as a whole.
type lineEnds struct{ head, tail []byte }

// endSize is how many bytes are kept of each end of a line.
const endSize = 512

func (e *lineEnds) add(chunk []byte) {
	e.head = append(e.head, chunk[:min(len(chunk), endSize-len(e.head))]...)
	e.tail = append(e.tail, chunk[max(0, len(chunk)-endSize):]...)
	e.tail = e.tail[max(0, len(e.tail)-endSize):]
}

// An id is found where SDKs write it: before a message's large members, or after them.
var (
	idFirst = regexp.MustCompile(`^\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,\s*)*"id"\s*:\s*` + idPattern + `\s*[,}]`)
	idLast  = regexp.MustCompile(`,\s*"id"\s*:\s*` + idPattern + `\s*(?:,\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*)*\}\s*$`)
)

const idPattern = `("(?:[^"\\]|\\.)*"|-?[0-9][-+.eE0-9]*)`

// IDWithin is how many of the first bytes of a message IDIn reads.
const IDWithin = endSize

// IDIn returns the id of a message of which only the beginning is there, nil if it is not found.
func IDIn(head []byte) []byte {
	e := lineEnds{head: head[:min(len(head), IDWithin)]}
	return e.id()
}

// id returns the top-level "id" of a JSON object, or nil if it is not found.
func (e *lineEnds) id() []byte {
	m := idFirst.FindSubmatch(e.head)
	if m == nil && bytes.HasPrefix(bytes.TrimSpace(e.head), []byte{'{'}) {
		m = idLast.FindSubmatch(e.tail)
	}
	if m == nil || !ValidID(m[1]) || !json.Valid(m[1]) {
		return nil
	}
	return m[1]
}

// appendOneLine appends raw JSON to dst as part of a line: line ends between its tokens become spaces. (Valid JSON has
// none in its strings.)
func appendOneLine(dst, raw []byte) []byte {
	at := len(dst)
	dst = append(dst, raw...)
	added := dst[at:]
	for _, c := range []byte{'\n', '\r'} {
		for i := 0; ; i++ {
			n := bytes.IndexByte(added[i:], c)
			if n < 0 {
				break
			}
			i += n
			added[i] = ' '
		}
	}
	return dst
}
