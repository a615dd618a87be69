package rpc

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
)

// DefaultMaxLine is the longest line a Conn takes when its Options name no other: 64 MiB.
const DefaultMaxLine = 64 << 20

// LongLineError says that a line was over the limit and was thrown away, all Size bytes of it. ID is the raw
// top-level id found in it on the way, nil if there was none.
type LongLineError struct {
	Size, Limit int64
	ID          []byte
}

func (e *LongLineError) Error() string {
	return fmt.Sprintf("a line of %d bytes is over the limit of %d", e.Size, e.Limit)
}

// lineReader cuts a stream into lines. Memory stays bounded by the limit whatever comes, and falls back to
// small after a large line, so that a thousand idle children cost a thousand small buffers.
type lineReader struct {
	r     io.Reader
	max   int
	buf   []byte // buf[start:end] is read and not yet returned
	start int
	end   int
	seen  int // buf[start:start+seen] holds no newline
	err   error
	count *atomic.Uint64 // bytes read, if anybody wants to know
}

const (
	smallBuffer = 4 << 10
	readBuffer  = 64 << 10 // a pipe's capacity on Linux
	keepBuffer  = 256 << 10
)

func newLineReader(r io.Reader, max int) *lineReader {
	if max <= 0 {
		max = DefaultMaxLine
	}
	return &lineReader{r: r, max: max}
}

// next returns the next line without its end ("\n" or "\r\n"), valid until the next call. A last line that
// lacks its newline counts. A line over the limit is discarded and reported as *LongLineError; reading may
// go on after it. Any other error is the stream's end.
func (l *lineReader) next() ([]byte, error) {
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
			return nil, l.discard()
		}
		if l.err != nil {
			if l.seen == 0 {
				return nil, l.err
			}
			line := l.buf[l.start:l.end:l.end]
			l.start, l.end, l.seen = 0, 0, 0
			return bytes.TrimSuffix(line, []byte{'\r'}), nil
		}
		l.fill()
	}
}

// fill reads once, after making room: by moving what is left to the front, by growing (doubling, from a
// small buffer to a pipe's capacity and beyond only for a line that needs it), or by letting go of a buffer
// that one large line had blown up.
func (l *lineReader) fill() {
	if l.start == l.end {
		l.start, l.end, l.seen = 0, 0, 0
		if cap(l.buf) > keepBuffer {
			giveBack(l.buf)
			l.buf = nil
		}
	}
	switch {
	case l.buf == nil:
		l.buf = make([]byte, smallBuffer)
	case l.end < len(l.buf):
	case l.start > len(l.buf)/2:
		l.end = copy(l.buf, l.buf[l.start:l.end])
		l.start = 0
	default:
		bigger := borrow(max(readBuffer, 2*len(l.buf)))
		l.end = copy(bigger, l.buf[l.start:l.end])
		l.start, l.buf = 0, bigger
	}
	for range 100 {
		n, err := l.r.Read(l.buf[l.end:])
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

// large is the buffers that large lines have left behind, for the next large line of any child: most of the time
// for one would go into growing towards it.
var large sync.Pool

// poolBuffer is the largest buffer that is worth keeping until the next collection or two.
const poolBuffer = 32 << 20

func borrow(n int) []byte {
	if n > keepBuffer {
		if b, ok := large.Get().(*[]byte); ok && len(*b) >= n {
			return *b
		}
	}
	return make([]byte, n)
}

func giveBack(b []byte) {
	if len(b) <= poolBuffer {
		large.Put(&b)
	}
}

func (l *lineReader) tooLong(line []byte) error {
	var s idScanner
	s.feed(line)
	return &LongLineError{Size: int64(len(line)), Limit: int64(l.max), ID: s.id()}
}

// discard throws the rest of an over-long line away, looking for its id on the way: some SDKs write it last.
func (l *lineReader) discard() error {
	var s idScanner
	size := int64(0)
	for {
		chunk := l.buf[l.start:l.end]
		i := bytes.IndexByte(chunk, '\n')
		if i >= 0 {
			chunk = chunk[:i]
		}
		s.feed(chunk)
		size += int64(len(chunk))
		l.start, l.seen = l.start+len(chunk), 0
		if i >= 0 {
			l.start++
			break
		}
		if l.err != nil {
			break
		}
		l.fill()
	}
	return &LongLineError{Size: size, Limit: int64(l.max), ID: s.id()}
}

// idScanner finds the top-level "id" of a JSON object that arrives in pieces and is never held as a whole.
// It assumes valid JSON and promises nothing for anything else than to stay within its few bytes.
type idScanner struct {
	depth  int
	str    bool   // inside a string
	esc    bool   // behind a backslash in it
	key    bool   // the string, or the next one at depth 1, is a key
	name   []byte // the key at depth 1, as far as it matters
	value  []byte
	taking bool // the value at depth 1 belongs to "id"
	found  []byte
}

func (s *idScanner) feed(chunk []byte) {
	for _, c := range chunk {
		s.step(c)
	}
}

func (s *idScanner) step(c byte) {
	if s.str {
		s.take(c)
		if s.depth == 1 && s.key && c != '"' && len(s.name) < 4 {
			s.name = append(s.name, c)
		}
		switch {
		case s.esc:
			s.esc = false
		case c == '\\':
			s.esc = true
		case c == '"':
			s.str = false
		}
		return
	}
	switch c {
	case '"':
		s.str = true
		if s.depth == 1 && s.key {
			s.name = s.name[:0]
		}
		s.take(c)
	case '{', '[':
		s.depth++
		if s.depth == 1 {
			s.key = true
		}
		s.taking = false // an id is no container
	case '}', ']':
		s.close()
		s.depth--
	case ':':
		if s.depth == 1 {
			s.key = false
			s.taking = string(s.name) == "id"
			s.value = s.value[:0]
		}
	case ',':
		s.close()
	case ' ', '\t', '\r', '\n':
	default:
		s.take(c)
	}
}

// close ends a member at depth 1.
func (s *idScanner) close() {
	if s.depth != 1 {
		return
	}
	if s.taking {
		s.found = append(s.found[:0], s.value...)
	}
	s.taking, s.key = false, true
}

func (s *idScanner) take(c byte) {
	if s.taking && s.depth == 1 && !s.key && len(s.value) < 64 {
		s.value = append(s.value, c)
	}
}

func (s *idScanner) id() []byte {
	if !ValidID(s.found) {
		return nil
	}
	return s.found
}

// appendOneLine appends raw JSON to dst as part of a line: the line ends that may stand between its tokens
// become spaces (inside its strings there are none, or it was not JSON).
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
