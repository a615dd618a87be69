package main

import (
	"fmt"
	"strings"
)

const tableHead = `| fault | who | the catalog is right when | right, ms: half of the followers / all | JetStream alone, ms: a write is taken / the meta leader answers | after the restart or thaw all is shown, ms: half / all | calls, and in flight at the fault | lost | difference to the bucket | remarks |
|---|---|---|---|---|---|---|---|---|---|`

// String is the row of the table.
func (o outcome) String() string {
	whose := "all"
	if o.inflight > 0 {
		whose = fmt.Sprint(o.inflight)
	}
	if len(o.saw) > 0 {
		const most = 8
		saw := o.saw
		if len(saw) > most {
			saw = append(saw[:most:most], fmt.Sprintf("and %d more", len(o.saw)-most))
		}
		o.remark("a follower saw, at ms: %s", strings.Join(saw, ", "))
	}
	o.load.mu.Lock()
	made, slowest := o.load.made, o.load.slowest
	o.load.mu.Unlock()
	o.remark("slowest answered call %s ms", ms(slowest))
	cells := []string{o.row.words(), o.victim, o.row.right, o.right.String(), o.elections.String(), o.back.String(),
		fmt.Sprintf("%d, %s", made, whose), o.load.String(), fmt.Sprint(o.differ), strings.Join(o.remarks, "; ")}
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(strings.ReplaceAll(c, "|", "/"), "\n", " ")
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

func notRun(r row, why string) string {
	why = strings.ReplaceAll(strings.ReplaceAll(why, "|", "/"), "\n", " ")
	return fmt.Sprintf("| %s | | %s | NOT RUN: %s | | | | | | |", r.words(), r.right, why)
}
