package manifest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"
)

// decodeTOML decodes a TOML file. A syntax error is reported alone, with its position.
func (f *file) decodeTOML() (map[string]any, bool) {
	end, over := f.scan()
	if over != nil {
		f.faultAt(end, "%v", over)
		return nil, false
	}
	text := f.text
	if end < len(text) {
		// The scanner stopped in this line. The decoder gets only text that the scanner has checked for the limits.
		if n := strings.IndexByte(text[end:], '\n'); n >= 0 {
			text = text[:end+n+1]
		}
	}
	tree, err := decodeTOML(text)
	var syntax toml.ParseError
	switch {
	case errors.As(err, &syntax):
		f.faultAt(syntax.Position.Start, "syntax: %s", clip(syntax.Message, 4*maxShown))
	case err != nil:
		f.fault("", "%v", err)
	case end < len(f.text):
		f.faultAt(end, "syntax: expected a key, a value or the end of the line")
	}
	return tree, f.faults == 0
}

// decodeTOML decodes into plain maps. Decoding into the Go types would stop at the first value of a wrong type and
// could not distinguish an absent key from an empty one.
func decodeTOML(text string) (tree map[string]any, err error) {
	// The decoder panics on its own bugs; a manifest must not end the program that reads it.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the TOML decoder cannot read this file: %s", clip(fmt.Sprint(r), maxShown))
		}
	}()
	_, err = toml.Decode(text, &tree)
	return tree, err
}
