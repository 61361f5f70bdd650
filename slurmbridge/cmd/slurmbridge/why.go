package main

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
)

func newWhy(s *shared) *cobra.Command {
	var server string
	c := &cobra.Command{
		Use:   "why JOB",
		Short: "What a job waits for, with whom it was considered, what was done to it",
		Long: `why explains one job, waiting, running or ended: the combinations that were
considered for it with their value and the slowdown foreseen, what the guard
refused and why, and every change that was made to it with the values before.`,
		Example: "  slurmbridge why 4711\n  slurmbridge why 4711_3     a task of an array",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := s.Load(c)
			if err != nil {
				return err
			}
			var story journal.Story
			if err := ask(c.Context(), cfg, server, "/v1/why/"+url.PathEscape(args[0]), &story); err != nil {
				return err
			}
			if s.JSON {
				return s.PrintJSON(&story)
			}
			s.printWhy(args[0], &story)
			return nil
		},
	}
	serverFlag(c, &server)
	return c
}

func (s *shared) printWhy(ref string, story *journal.Story) {
	if p := story.Waits; p != nil {
		s.printPlace(ref, p)
	}
	if n := story.Note; n != nil {
		fmt.Fprintf(s.Out, "job %s (%s ago): %s\n", ref, time.Since(n.At).Round(time.Second), n.Status)
		switch {
		case n.App == "":
			fmt.Fprintln(s.Out, "  its application isn't known: it runs alone")
		case !n.Known:
			fmt.Fprintf(s.Out, "  application %s has no profile yet: it runs alone once and is learned\n", n.App)
		default:
			fmt.Fprintf(s.Out, "  application %s\n", n.App)
		}
		if n.PassedOver > 0 {
			fmt.Fprintf(s.Out, "  passed over %d times\n", n.PassedOver)
		}
		fmt.Fprintf(s.Out, "  the bridge alone may keep it waiting for another %s\n", time.Duration(n.LatestDelayS*float64(time.Second)).Round(time.Second))
		if n.FreeInS >= 0 {
			fmt.Fprintf(s.Out, "  the first of the GPUs considered is expected to be empty in %s\n", time.Duration(n.FreeInS*float64(time.Second)).Round(time.Second))
		}
		for _, text := range n.Ignored {
			fmt.Fprintf(s.Out, "  ignored %s\n", text)
		}
		for _, c := range n.Considered {
			mark := " "
			if c.Taken {
				mark = "*"
			}
			fmt.Fprintf(s.Out, "  %s considered %s on %s gpu %d: value %.3g", mark, strings.Join(c.Jobs, " + "), c.Node, c.GPU, c.Value)
			for i, v := range c.Slowdown {
				sep := ", slowdown "
				if i > 0 {
					sep = " / "
				}
				fmt.Fprintf(s.Out, "%s%.2f", sep, v)
			}
			fmt.Fprintln(s.Out)
		}
		for _, r := range n.Refused {
			fmt.Fprintf(s.Out, "    refused %s\n", r)
		}
	}
	for i := range story.Groups {
		g := &story.Groups[i]
		var with []string
		self := ""
		for k := range g.Members {
			m := &g.Members[k]
			if m.Ref != ref {
				with = append(with, m.Ref)
				continue
			}
			if m.Predicted > 0 {
				self = fmt.Sprintf(", slowdown foreseen %.2f", m.Predicted)
			}
			switch {
			case m.State.Final():
				self += ", " + string(m.State)
			case m.Ran():
				self += ", running since " + m.Start.Local().Format(time.TimeOnly)
			}
		}
		partners := "alone"
		if len(with) > 0 {
			partners = "with " + strings.Join(with, ", ")
		}
		fmt.Fprintf(s.Out, "group %d, %s: %s on %s gpu %d%s\n", g.ID, g.Decided.Local().Format(time.DateTime), partners, g.Node, g.GPU, self)
	}
	for i := range story.Outcomes {
		s.printOutcome(&story.Outcomes[i])
	}
	for _, e := range story.Changes {
		fmt.Fprintf(s.Out, "%s %s", e.At.Local().Format("15:04:05.000"), e.Change)
		if e.Mode == "shadow" {
			fmt.Fprint(s.Out, "  (shadow: not done)")
		}
		if e.Result != "ok" {
			fmt.Fprintf(s.Out, "  -> %s", e.Result)
		}
		fmt.Fprintf(s.Out, "\n             before: %s\n", e.Was)
	}
}

// printOutcome says what came of one run.
func (s *shared) printOutcome(o *history.Outcome) {
	state := strings.ToLower(o.State)
	if state == "" {
		state = "ended"
	}
	fmt.Fprintf(s.Out, "%s after %s on %s", state, o.End.Sub(o.Start).Round(time.Second), o.Node)
	if o.Shared() {
		fmt.Fprintf(s.Out, ", beside %s", strings.Join(o.With, ", "))
	} else {
		fmt.Fprint(s.Out, ", alone")
	}
	if o.Slowdown > 0 {
		fmt.Fprintf(s.Out, ": %.2f times its time alone", o.Slowdown)
		if o.Predicted > 0 {
			fmt.Fprintf(s.Out, ", foreseen %.2f", o.Predicted)
		}
	}
	switch {
	case o.Broken:
		fmt.Fprintf(s.Out, "; its contract of %.2f was broken", o.Contract)
	case o.Contract > 0 && o.Slowdown > 0 && o.Shared():
		fmt.Fprintf(s.Out, "; its contract of %.2f was kept", o.Contract)
	}
	fmt.Fprintln(s.Out)
	if o.Suspect != "" {
		fmt.Fprintf(s.Out, "  its company may be the reason: %s", o.Suspect)
		if o.Again {
			fmt.Fprint(s.Out, "; it was run once more, alone")
		}
		fmt.Fprintln(s.Out)
	}
	if o.Cleared {
		fmt.Fprintln(s.Out, "  it failed alone, too: its company was not the reason")
	}
	if o.Learned {
		fmt.Fprintln(s.Out, "  the run became part of its application's profile")
	}
}

func (s *shared) printPlace(ref string, p *job.QueuePosition) {
	fmt.Fprintf(s.Out, "job %s (%s ago): waits", ref, time.Since(p.At).Round(time.Second))
	switch {
	case p.Holds != "":
		fmt.Fprintf(s.Out, " for %s; the bridge leaves it alone until then\n", p.Holds)
	case p.Position > p.Window:
		fmt.Fprintf(s.Out, " for a decision, place %d of %d: a decision looks at the first %d\n", p.Position, p.Of, p.Window)
	default:
		fmt.Fprintf(s.Out, " for a decision, place %d of %d, within the window of %d\n", p.Position, p.Of, p.Window)
	}
	if p.Gate != "" {
		fmt.Fprintf(s.Out, "  it is behind gate %s; without the daemon that opens in %.0f s\n", p.Gate, max(0, p.LeaseLeftS))
	}
}
