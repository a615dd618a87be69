package main

import (
	"fmt"
	"slices"
	"strings"
)

const tableHead = `| fault | who | catalog right, ms | JetStream alone, ms | all shown again, ms | calls | lost | differ | remarks |
|---|---|---|---|---|---|---|---|---|`

// mostSeen is how much of what a follower saw fits into a cell.
const mostSeen = 8

// String is the row of the table.
func (o outcome) String() string {
	remarks := slices.Clone(o.remarks)
	if saw := o.saw; len(saw) > 0 {
		if len(saw) > mostSeen {
			saw = append(slices.Clone(saw[:mostSeen]), fmt.Sprintf("and %d more", len(saw)-mostSeen))
		}
		remarks = append(remarks, "a follower saw, at ms: "+strings.Join(saw, ", "))
	}
	o.load.mu.Lock()
	made, slowest := o.load.made, o.load.slowest
	o.load.mu.Unlock()
	remarks = append(remarks, fmt.Sprintf("slowest answered call %s ms", ms(slowest)))
	return line(o.row.words(), o.victim, o.right.String(), o.elections.String(), o.back.String(),
		fmt.Sprintf("%d (%d)", made, o.inflight), o.load.String(), fmt.Sprint(o.differ), strings.Join(remarks, "; "))
}

func notRun(r row, why string) string {
	return line(r.words(), "", "NOT RUN: "+why, "", "", "", "", "", "")
}

func line(cells ...string) string {
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(strings.ReplaceAll(c, "|", "/"), "\n", " ")
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

// legend says what the columns mean, and what right is in each row.
func legend(rows []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, `
- **catalog right**: from the fault until it holds, in half of the %d followers / in the last of them:
`, followers)
	meanings, of := []string{}, map[string][]string{}
	for _, r := range rows {
		who := strings.ReplaceAll(r.target, "-", " ")
		if of[r.right] == nil {
			meanings = append(meanings, r.right)
		}
		if !slices.Contains(of[r.right], who) {
			of[r.right] = append(of[r.right], who)
		}
	}
	for _, right := range meanings {
		fmt.Fprintf(&b, "  - %s: %s\n", strings.Join(of[right], ", "), right)
	}
	fmt.Fprintf(&b, `- **JetStream alone**: from the fault until the catalog's stream takes a write / the meta leader answers, asked by
  this program without pause
- **all shown again**: from the restart or the thaw until the followers show two instances of the bridged extension,
  the service and the last change as ready, half / last; of a leader from 3 s after the thaw, during which it was
  given something to write
- **calls**: made while the row ran, its second before and its second after included, and how many were in flight at
  the fault: at all replicas of the victim's extension, or at all extensions
- **lost**: calls that ended in an error, by extension and error. "ran: maybe" is a call that was sent and not answered,
  "ran: no" one that surely did not run. Callers give a call %s and take what mesh.Client retries by itself
- **fence**: the leading registry, whose lease is taken away as soon as it is stopped; its own clock does not tell it
- **differ**: documents in which the followers, all of them, and a fresh reading of the bucket are not the same in the end
`, callTimeout)
	return b.String()
}
