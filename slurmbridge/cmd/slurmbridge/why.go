package main

import (
	"cmp"
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
		Short: "What a job waits for, with which jobs it was considered, what was done to it",
		Long: `why explains one job, waiting, running or ended: the combinations that were
considered for it with their value and the predicted slowdown, what the guard
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
	if e := story.Note; e != nil {
		s.printExplanation(ref, e)
	}
	for i := range story.Groups {
		s.printGroup(ref, &story.Groups[i])
	}
	for i := range story.Outcomes {
		s.printOutcome(&story.Outcomes[i])
	}
	for _, e := range story.Changes {
		s.printf("%s %s", e.At.Local().Format("15:04:05.000"), e.Change)
		if e.Mode == job.Shadow {
			s.printf("  (shadow: not done)")
		}
		if e.Result != "ok" {
			s.printf("  -> %s", e.Result)
		}
		s.printf("\n             before: %s\n", e.Was)
	}
}

func (s *shared) printf(format string, args ...any) { fmt.Fprintf(s.Out, format, args...) }

// printExplanation prints what the last decision considered for a job.
func (s *shared) printExplanation(ref string, e *job.Explanation) {
	s.printf("job %s (%s ago): %s\n", ref, time.Since(e.At).Round(time.Second), e.Status)
	switch {
	case e.App == "":
		s.printf("  its application isn't known: it runs alone\n")
	case !e.Known:
		s.printf("  application %s has no profile yet: it runs alone once and is learned\n", e.App)
	default:
		s.printf("  application %s\n", e.App)
	}
	if e.Preallocates {
		s.printf("  %s\n", preallocates)
	}
	s.printEnds(e.PlainEnd, e.ExpectedEnd, e.Known)
	s.printf("  the bridge alone may keep it waiting for another %s\n", seconds(e.LatestDelayS))
	if e.FreeInS >= 0 {
		s.printf("  the first of the GPUs considered is expected to be empty in %s\n", seconds(e.FreeInS))
	}
	for _, text := range e.Ignored {
		s.printf("  ignored %s\n", text)
	}
	for _, c := range e.Considered {
		mark := map[bool]string{true: "*", false: " "}[c.Taken]
		s.printf("  %s considered %s on %s gpu %d: value %.3g", mark, strings.Join(c.Jobs, " + "), c.Node, c.GPU, c.Value)
		separator := ", slowdown "
		for _, slowdown := range c.Slowdown {
			s.printf("%s%.2f", separator, slowdown)
			separator = " / "
		}
		s.printf("\n")
	}
	for _, r := range e.Refused {
		s.printf("    refused %s\n", r)
	}
}

// printEnds prints when a job is expected to end, and when plain Slurm would have ended it.
func (s *shared) printEnds(plain, expected time.Time, known bool) {
	if plain.IsZero() {
		return
	}
	at := func(t time.Time) string {
		if t.IsZero() {
			return "a time that isn't known"
		}
		return t.Local().Format(time.DateTime)
	}
	limit := ""
	if !known {
		limit = ", should it take its whole time limit"
	}
	s.printf("  expected to end at %s; plain Slurm would end it at %s%s\n", at(expected), at(plain), limit)
}

func seconds(v float64) time.Duration {
	return time.Duration(v * float64(time.Second)).Round(time.Second)
}

// printGroup prints a group that the job was a member of.
func (s *shared) printGroup(ref string, g *job.Group) {
	var others []string
	own := ""
	var plainEnd, expected time.Time
	for i := range g.Members {
		m := &g.Members[i]
		if m.Ref != ref {
			others = append(others, m.Ref)
			continue
		}
		if !m.ExpectedEnd.IsZero() {
			plainEnd, expected = m.PlainEnd, m.ExpectedEnd
		}
		if m.Predicted > 0 {
			own = fmt.Sprintf(", slowdown %.2f predicted", m.Predicted)
		}
		switch {
		case m.State.Final():
			own += ", " + string(m.State)
		case m.Ran():
			own += ", running since " + m.Start.Local().Format(time.TimeOnly)
		}
	}
	company := "alone"
	if len(others) > 0 {
		company = "with " + strings.Join(others, ", ")
	}
	if !plainEnd.IsZero() {
		own += fmt.Sprintf("; expected to end at %s, on plain Slurm at %s", expected.Local().Format(time.TimeOnly), plainEnd.Local().Format(time.TimeOnly))
	}
	at := fmt.Sprintf("on %s gpu %d", g.Node, g.GPU)
	if g.Node == "" {
		at = "in its turn"
	}
	s.printf("group %d, %s: %s %s%s\n", g.ID, g.Decided.Local().Format(time.DateTime), company, at, own)
}

// printOutcome prints how one run of the job ended.
func (s *shared) printOutcome(o *history.Outcome) {
	s.printf("%s after %s on %s", cmp.Or(strings.ToLower(o.State), "ended"), o.End.Sub(o.Start).Round(time.Second), o.Node)
	if o.Shared() {
		s.printf(", sharing with %s", strings.Join(o.With, ", "))
	} else {
		s.printf(", alone")
	}
	if o.Slowdown > 0 {
		s.printf(": %.2f times its time alone", o.Slowdown)
		if o.Predicted > 0 {
			s.printf(", %.2f predicted", o.Predicted)
		}
	}
	switch {
	case o.Broken:
		s.printf("; its contract of %.2f was broken", o.Contract)
	case o.Contract > 0 && o.Slowdown > 0 && o.Shared():
		s.printf("; its contract of %.2f was kept", o.Contract)
	}
	s.printf("\n")
	if o.Suspect != "" {
		s.printf("  sharing may be the reason: %s", o.Suspect)
		if o.Again {
			s.printf("; it was run again, alone")
		} else if !o.Ours && history.Failed(o.State) {
			s.printf("; --comment=share:retry has such jobs run again, alone")
		}
		s.printf("\n")
	}
	if o.LentS > 0 {
		s.printf("  its time limit was raised by %s because sharing had slowed it\n", seconds(o.LentS))
	}
	if o.HeldS > 0 {
		s.printf("  the bridge kept it waiting %s longer than it may\n", seconds(o.HeldS))
	}
	if !o.PlainEnd.IsZero() {
		s.printf("  plain Slurm would have ended it at %s\n", o.PlainEnd.Local().Format(time.DateTime))
	}
	for _, kind := range o.Harm() {
		s.printf("  worse off than on plain Slurm: %s\n", kind)
	}
	if o.Cleared {
		s.printf("  it failed alone, too: sharing was not the reason\n")
	}
	if o.Learned {
		s.printf("  the run became part of its application's profile\n")
	}
}

func (s *shared) printPlace(ref string, p *job.QueuePosition) {
	s.printf("job %s (%s ago): waits", ref, time.Since(p.At).Round(time.Second))
	switch {
	case p.Holds != "":
		s.printf(" for %s; the bridge leaves it alone until then\n", p.Holds)
	case p.Position > p.Window:
		s.printf(" for a decision, place %d of %d: a decision looks at the first %d\n", p.Position, p.Of, p.Window)
	default:
		s.printf(" for a decision, place %d of %d, within the window of %d\n", p.Position, p.Of, p.Window)
	}
	if !p.ExpectedStart.IsZero() {
		s.printf("  expected to start by %s\n", p.ExpectedStart.Local().Format(time.DateTime))
	}
	if p.Gate != "" {
		s.printf("  it is behind gate %s; without the daemon that opens in %.0f s\n", p.Gate, max(0, p.LeaseLeftS))
	}
}
