package main

import (
	"os"
	"unicode/utf8"

	"golang.org/x/term"
)

// terminalWidth is the width of a terminal in characters; 0 if out is not a terminal.
func terminalWidth(out any) int {
	width, _ := terminalSize(out)
	return width
}

// terminalSize is the size of a terminal in characters; 0 if out is not a terminal.
func terminalSize(out any) (width, height int) {
	f, ok := out.(*os.File)
	if !ok {
		return 0, 0
	}
	width, height, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0, 0
	}
	return width, height
}

// Widths of columns that do not fit.
const (
	gap       = 2  // between columns
	minColumn = 6  // to which a column may be shortened
	minLast   = 12 // to which the last column is shortened before the others are
)

// fitColumns shortens columns so that a line has at most total characters: first the last one, which is free text, then the
// widest ones, the first column, the name, last of all.
func fitColumns(widths []int, total int) []int {
	out := append([]int{}, widths...)
	n := len(out)
	if n == 0 {
		return out
	}
	over := gap*(n-1) - total
	for _, w := range out {
		over += w
	}
	take := func(i, least int) {
		cut := min(over, max(0, out[i]-least))
		if cut > 0 {
			out[i], over = out[i]-cut, over-cut
		}
	}
	take(n-1, minLast)
	for over > 0 {
		widest := -1
		for i := 1; i < n; i++ {
			if out[i] > minColumn && (widest < 0 || out[i] > out[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		take(widest, out[widest]-1)
	}
	take(0, minColumn)
	return out
}

// cut shortens a cell to a width.
func cut(cell string, width int) string {
	if utf8.RuneCountInString(cell) <= width {
		return cell
	}
	return string([]rune(cell)[:max(width-1, 0)]) + "…"
}
