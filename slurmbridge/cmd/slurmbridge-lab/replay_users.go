package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/slurmbridge/slurmbridge/rlcore/lab/experiment"
)

// usersShown is how many users a table lists; the JSON has all.
const usersShown = 20

// printUsers prints how each user fared under the policies of the given order, those
// with the most jobs first.
func (s *shared) printUsers(r *experiment.ReplayReport, order []string) {
	users := slices.SortedFunc(maps.Keys(r.Users), func(a, b string) int {
		return cmp.Or(r.Users[b]["fifo"].Jobs-r.Users[a]["fifo"].Jobs, cmp.Compare(a, b))
	})
	t := table.NewWriter()
	t.SetOutputMirror(s.Out)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"user", "jobs", "policy", "wait s", "less fifo's", "turnaround s", "÷ fifo's", "later", "worst slowdown", "passed over", "at most", "delay s"})
	for i, user := range users[:min(usersShown, len(users))] {
		if i > 0 {
			t.AppendSeparator()
		}
		first := []any{cmp.Or(user, "(not given)"), r.Users[user]["fifo"].Jobs}
		for _, name := range order {
			x := r.Users[user][name]
			if x == nil {
				continue
			}
			t.AppendRow(append(first,
				name, fmt.Sprintf("%.0f", x.WaitS), fmt.Sprintf("%+.0f", x.WaitVsFifoS), fmt.Sprintf("%.0f", x.TurnaroundS),
				fmt.Sprintf("%.2f", x.VsFifo), percent(x.Later), fmt.Sprintf("%.2f", x.MaxSlowdown),
				fmt.Sprintf("%.2f", x.PassedOver), x.MaxPassedOver, fmt.Sprintf("%.0f", x.MaxDelayS),
			))
			first = []any{"", ""}
		}
	}
	t.Render()
	if n := len(users) - usersShown; n > 0 {
		fmt.Fprintf(s.Out, "and %d more users, see --json\n", n)
	}
}
