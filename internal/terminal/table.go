package terminal

import (
	"bufio"
	"io"
	"strings"
	"unicode/utf8"
)

// Table prints aligned columns, on a terminal only as wide as it is.
type Table struct {
	Names []string
	Rows  [][]string
	Width int                              // of the terminal, to which the columns are fitted; 0 if there is none
	Limit int                              // of the last column, without a terminal; 0: none
	Paint func(column, cell string) string // colours a cell; may be nil
}

// Add adds a row of cells, cleaned; an empty one is shown as a dash.
func (t *Table) Add(cells ...string) {
	for i := range cells {
		cells[i] = Clean(cells[i])
		if cells[i] == "" {
			cells[i] = "-"
		}
	}
	t.Rows = append(t.Rows, cells)
}

// Print prints the names and the rows.
func (t *Table) Print(w io.Writer) error {
	if t.Width == 0 && t.Limit > 0 {
		for _, row := range t.Rows {
			row[len(row)-1] = Cut(row[len(row)-1], t.Limit)
		}
	}
	width := make([]int, len(t.Names))
	for _, row := range append([][]string{t.Names}, t.Rows...) {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	if t.Width > 0 {
		width = fitColumns(width, t.Width)
	}
	b := bufio.NewWriter(w)
	t.line(b, t.Names, width, nil)
	for _, row := range t.Rows {
		t.line(b, row, width, t.Paint)
	}
	return b.Flush()
}

func (t *Table) line(w *bufio.Writer, row []string, width []int, paint func(column, cell string) string) {
	for i, cell := range row {
		cell = Cut(cell, width[i])
		pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
		if i == len(row)-1 {
			pad = ""
		} else {
			pad += "  "
		}
		if paint != nil {
			cell = paint(t.Names[i], cell)
		}
		w.WriteString(cell) // Flush returns the error
		w.WriteString(pad)
	}
	w.WriteByte('\n')
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
