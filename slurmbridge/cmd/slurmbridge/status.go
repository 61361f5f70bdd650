package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
)

func newStatus(s *shared) *cobra.Command {
	var server string
	c := &cobra.Command{
		Use:   "status",
		Short: "GPUs with their jobs, groups about to start, the gate",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := s.Load(c)
			if err != nil {
				return err
			}
			var r httpapi.Report
			if err := ask(c.Context(), cfg, server, "/v1/status", &r); err != nil {
				return err
			}
			if s.JSON {
				return s.PrintJSON(&r)
			}
			s.printStatus(&r)
			return nil
		},
	}
	serverFlag(c, &server)
	return c
}

func (s *shared) printStatus(r *httpapi.Report) {
	policy := r.Policy
	if r.Model != "" {
		policy += " (model " + r.Model + ")"
	}
	if r.Objective != "" {
		policy += " for the " + r.Objective
	}
	fmt.Fprintf(s.Out, "%s, policy %s, Slurm %s, polled %s ago\n", r.Mode, policy, r.Slurm, time.Since(r.At).Round(time.Second))
	switch {
	case r.Mode == string(job.Shadow):
		fmt.Fprintln(s.Out, "shadow: nothing is changed")
	case r.Standby != "":
		fmt.Fprintf(s.Out, "standby: %s decides; this daemon takes over if gate %s is not renewed within %.0f s\n", r.Standby, r.Gate, max(0, r.LeaseLeft))
	case r.Gate == "":
		fmt.Fprintln(s.Out, "there is no gate: shared jobs run alone")
	default:
		fmt.Fprintf(s.Out, "gate %s: %d jobs wait behind it; without the daemon it opens in %.0f s\n", r.Gate, r.Waiting, max(0, r.LeaseLeft))
	}
	if r.GateError != "" {
		fmt.Fprintf(s.Out, "trouble with the gate: %s\n", r.GateError)
	}
	if r.Error != "" {
		fmt.Fprintf(s.Out, "the last look failed: %s\n", r.Error)
	}
	if r.Turn != nil && r.Turn.Jobs > 0 {
		fmt.Fprintf(s.Out, "turnaround in the last day: %s\n", r.Turn)
	}
	t := table.NewWriter()
	t.SetOutputMirror(s.Out)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"node", "gpu", "type", "jobs"})
	for _, g := range r.GPUs {
		var jobs []string
		for _, j := range g.Jobs {
			text := fmt.Sprintf("%s %s %d%%", j.Ref, j.User, j.Shares)
			if j.App != "" {
				text += " " + j.App
			}
			jobs = append(jobs, text)
		}
		what := strings.Join(jobs, ", ")
		switch {
		case !g.Up:
			what = "out of service"
		case what == "":
			what = "idle"
		}
		t.AppendRow(table.Row{g.Node, g.GPU, g.Type, what})
	}
	t.Render()
	for i := range r.Groups {
		g := &r.Groups[i]
		if g.State != job.Released {
			continue
		}
		fmt.Fprintf(s.Out, "group %d: %s on %s gpu %d", g.ID, strings.Join(g.Refs(), ", "), g.Node, g.GPU)
		fmt.Fprintln(s.Out)
	}
	for _, ref := range slices.Sorted(maps.Keys(r.HandsOff)) {
		fmt.Fprintf(s.Out, "job %s is left to Slurm: %s\n", ref, r.HandsOff[ref])
	}
}
