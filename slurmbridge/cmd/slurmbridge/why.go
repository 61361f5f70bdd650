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
			cfg, err := s.load(c)
			if err != nil {
				return err
			}
			var story journal.Story
			if err := ask(c.Context(), cfg, server, "/v1/why/"+url.PathEscape(args[0]), &story); err != nil {
				return err
			}
			if s.json {
				return s.printJSON(&story)
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
		fmt.Fprintf(s.out, "job %s (%s ago): %s\n", ref, time.Since(n.At).Round(time.Second), n.Status)
		switch {
		case n.App == "":
			fmt.Fprintln(s.out, "  its application isn't known: it runs alone")
		case !n.Known:
			fmt.Fprintf(s.out, "  application %s has no profile yet: it runs alone once and is learned\n", n.App)
		default:
			fmt.Fprintf(s.out, "  application %s\n", n.App)
		}
		if n.PassedOver > 0 {
			fmt.Fprintf(s.out, "  passed over %d times\n", n.PassedOver)
		}
		fmt.Fprintf(s.out, "  the bridge alone may keep it waiting for another %s\n", time.Duration(n.LatestDelayS*float64(time.Second)).Round(time.Second))
		if n.FreeInS >= 0 {
			fmt.Fprintf(s.out, "  the first of the GPUs considered is expected to be empty in %s\n", time.Duration(n.FreeInS*float64(time.Second)).Round(time.Second))
		}
		for _, text := range n.Ignored {
			fmt.Fprintf(s.out, "  ignored %s\n", text)
		}
		for _, c := range n.Considered {
			mark := " "
			if c.Taken {
				mark = "*"
			}
			fmt.Fprintf(s.out, "  %s considered %s on %s gpu %d: value %.3g", mark, strings.Join(c.Jobs, " + "), c.Node, c.GPU, c.Value)
			for i, v := range c.Slowdown {
				sep := ", slowdown "
				if i > 0 {
					sep = " / "
				}
				fmt.Fprintf(s.out, "%s%.2f", sep, v)
			}
			fmt.Fprintln(s.out)
		}
		for _, r := range n.Refused {
			fmt.Fprintf(s.out, "    refused %s\n", r)
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
		fmt.Fprintf(s.out, "group %d, %s: %s on %s gpu %d%s\n", g.ID, g.Decided.Local().Format(time.DateTime), partners, g.Node, g.GPU, self)
	}
	for i := range story.Outcomes {
		s.printOutcome(&story.Outcomes[i])
	}
	for _, e := range story.Changes {
		fmt.Fprintf(s.out, "%s %s", e.At.Local().Format("15:04:05.000"), e.Change)
		if e.Mode == "shadow" {
			fmt.Fprint(s.out, "  (shadow: not done)")
		}
		if e.Result != "ok" {
			fmt.Fprintf(s.out, "  -> %s", e.Result)
		}
		fmt.Fprintf(s.out, "\n             before: %s\n", e.Was)
	}
}

// printOutcome says what came of one run.
func (s *shared) printOutcome(o *history.Outcome) {
	state := strings.ToLower(o.State)
	if state == "" {
		state = "ended"
	}
	fmt.Fprintf(s.out, "%s after %s on %s", state, o.End.Sub(o.Start).Round(time.Second), o.Node)
	if o.Shared() {
		fmt.Fprintf(s.out, ", beside %s", strings.Join(o.With, ", "))
	} else {
		fmt.Fprint(s.out, ", alone")
	}
	if o.Slowdown > 0 {
		fmt.Fprintf(s.out, ": %.2f times its time alone", o.Slowdown)
		if o.Predicted > 0 {
			fmt.Fprintf(s.out, ", foreseen %.2f", o.Predicted)
		}
	}
	switch {
	case o.Broken:
		fmt.Fprintf(s.out, "; its contract of %.2f was broken", o.Contract)
	case o.Contract > 0 && o.Slowdown > 0 && o.Shared():
		fmt.Fprintf(s.out, "; its contract of %.2f was kept", o.Contract)
	}
	fmt.Fprintln(s.out)
	if o.Suspect != "" {
		fmt.Fprintf(s.out, "  its company may be the reason: %s", o.Suspect)
		if o.Again {
			fmt.Fprint(s.out, "; it was run once more, alone")
		}
		fmt.Fprintln(s.out)
	}
	if o.Cleared {
		fmt.Fprintln(s.out, "  it failed alone, too: its company was not the reason")
	}
	if o.Learned {
		fmt.Fprintln(s.out, "  the run became part of its application's profile")
	}
}

func (s *shared) printPlace(ref string, p *job.QueuePosition) {
	fmt.Fprintf(s.out, "job %s (%s ago): waits", ref, time.Since(p.At).Round(time.Second))
	switch {
	case p.Holds != "":
		fmt.Fprintf(s.out, " for %s; the bridge leaves it alone until then\n", p.Holds)
	case p.Position > p.Window:
		fmt.Fprintf(s.out, " for a decision, place %d of %d: a decision looks at the first %d\n", p.Position, p.Of, p.Window)
	default:
		fmt.Fprintf(s.out, " for a decision, place %d of %d, within the window of %d\n", p.Position, p.Of, p.Window)
	}
	if p.Gate != "" {
		fmt.Fprintf(s.out, "  it is behind gate %s; without the daemon that opens in %.0f s\n", p.Gate, max(0, p.LeaseLeftS))
	}
}
