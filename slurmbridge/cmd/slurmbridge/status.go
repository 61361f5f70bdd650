package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/comment"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/journal"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/usage"
)

// statusFlags choose the GPUs that status lists.
type statusFlags struct {
	gpus, me bool
	node     string
}

func newStatus(s *shared) *cobra.Command {
	var f statusFlags
	c := &cobra.Command{
		Use:   "status",
		Short: "How the bridge is, what its GPUs and jobs do, and what is unusual",
		Long: `status says in a few lines how the bridge is, how many GPUs are shared and how many jobs
wait, and then what is unusual: GPUs that are out of service or closed, jobs that share
without MPS, changes that Slurm refuses, jobs that are left to Slurm.

The first word is well, impaired (jobs share, and something needs an admin) or down (no job
can be made to share), with its reason; so are the page, /-/healthy and slurmbridge_health.

GPUs are listed one by one where there are few; of a large cluster, with --gpus all, with
--node those of a node, and with --me those of your jobs.`,
		Example: "  slurmbridge status\n  slurmbridge status --node gpu7\n  slurmbridge status --me",
		Args:    cobra.NoArgs,
		RunE: s.Configured(func(c *cobra.Command, cfg *config.Config, _ []string) error {
			lists, err := f.lists()
			if err != nil {
				return err
			}
			var r httpapi.Report
			if err := ask(c.Context(), cfg, "/v1/status", &r); err != nil {
				return err
			}
			return s.Show(&r, func() { s.printStatus(&r, lists) })
		}),
	}
	askFlags(c)
	c.Flags().BoolVar(&f.gpus, "gpus", false, "list all GPUs")
	c.Flags().StringVar(&f.node, "node", "", "list the GPUs of this `node`")
	c.Flags().BoolVar(&f.me, "me", false, "list the GPUs that my jobs are on")
	return c
}

// fewGPUs is up to how many GPUs status lists without --gpus.
const fewGPUs = 16

// lists returns which GPUs of so many are listed.
func (f *statusFlags) lists() (func(g *httpapi.GPU, of int) bool, error) {
	if f.gpus && (f.me || f.node != "") || f.me && f.node != "" {
		return nil, cli.Usage(errors.New("--gpus, --node and --me are three ways to choose: take one"))
	}
	name := ""
	if f.me {
		u, err := user.Current()
		if err != nil {
			return nil, fmt.Errorf("who calls isn't known: %w", err)
		}
		name = u.Username
	}
	return func(g *httpapi.GPU, of int) bool {
		switch {
		case f.me:
			return slices.ContainsFunc(g.Jobs, func(j httpapi.GPUJob) bool { return j.User == name })
		case f.node != "":
			return g.Node == f.node
		}
		return f.gpus || of <= fewGPUs
	}, nil
}

// printStatus prints a report: a summary, the GPUs that are listed, and what is unusual.
func (s *shared) printStatus(r *httpapi.Report, lists func(g *httpapi.GPU, of int) bool) {
	if r.At.IsZero() {
		s.printf("no poll has succeeded yet: %s\n", r.Err)
		return
	}
	s.printf("%s", cmp.Or(r.Health.State, job.Well))
	if r.Health.Why != "" {
		s.printf(": %s", r.Health.Why)
	}
	s.printf("\n%s, policy %s, Slurm %s, polled %s ago\n", r.Mode, r.Deciding(), r.Slurm,
		time.Since(r.At).Round(time.Second))
	s.printGate(r)
	s.printCounts(r)
	if r.Turn != nil && r.Turn.Jobs > 0 {
		s.printf("turnaround in the last day: %s\n", r.Turn)
	}
	if r.Seen != nil && r.Seen.Telling() {
		s.printf("in the last day %s\n", r.Seen)
	}
	s.printGPUs(r, lists)
	s.printUnusual(r)
}

func (s *shared) printGate(r *httpapi.Report) {
	switch {
	case r.Mode == job.Shadow:
		s.printf("shadow: nothing is changed; mode: active in slurmbridge.yaml switches it on\n")
	case r.Standby != "":
		s.printf("standby: %s decides; this daemon takes over if gate %s is not renewed within %.0f s\n", r.Standby,
			r.Gate, max(0, r.LeaseLeft))
	case r.Gate == "":
		s.printf("there is no gate: shared jobs run alone\n")
	default:
		s.printf("gate %s: %d jobs wait behind it; without the daemon it opens in %.0f s\n", r.Gate, r.Waiting,
			max(0, r.LeaseLeft))
	}
	if r.GateAccount != "" {
		s.printf("the gate is in account %s: Slurm refuses it in the default account of the bridge's user\n",
			r.GateAccount)
	}
	if r.GateErr != "" {
		s.printf("trouble with the gate: %s\n", r.GateErr)
	}
	if r.Err != "" {
		s.printf("the last poll failed: %s\n", r.Err)
	}
}

// printCounts counts GPUs by use and jobs by state.
func (s *shared) printCounts(r *httpapi.Report) {
	starts, c := 0, httpapi.CountUses(r.GPUs)
	for i := range r.Groups {
		if r.Groups[i].State == job.Released {
			starts += len(r.Groups[i].Members)
		}
	}
	s.printf("%s: %d shared by %s, %d with one job, %d idle, %d out of service\n", job.Count(len(r.GPUs), "GPU"), c.Shared,
		job.Count(c.Sharers, "job"), c.Single, c.Idle, c.Down)
	s.printf("%s, %d about to start\n", job.Count(r.Waiting, "waiting job"), starts)
}

// printGPUs lists GPUs with their jobs.
func (s *shared) printGPUs(r *httpapi.Report, lists func(g *httpapi.GPU, of int) bool) {
	t := s.Table("", "node", "gpu", "type", "jobs")
	for i := range r.GPUs {
		if g := &r.GPUs[i]; lists(g, len(r.GPUs)) {
			t.AppendRow(table.Row{g.Node, g.GPU, g.Type, gpuText(g)})
		}
	}
	if t.Length() > 0 {
		t.Render()
	}
}

// gpuText says what is on a GPU.
func gpuText(g *httpapi.GPU) string {
	var jobs []string
	for _, j := range g.Jobs {
		text := fmt.Sprintf("%s %s %d%%", j.Ref, j.User, j.Shares)
		if j.App != "" {
			text += " " + j.App
		}
		jobs = append(jobs, text)
	}
	text := strings.Join(jobs, ", ")
	switch {
	case !g.Up:
		return "out of service"
	case text == "":
		return "idle"
	case g.Faulted:
		return text + "; no job joins until they have ended: the MPS server may be broken"
	}
	return text
}

// mostListed is how many jobs a line of what is unusual names.
const mostListed = 10

// printUnusual prints what an admin may want to look at.
func (s *shared) printUnusual(r *httpapi.Report) {
	if len(r.GPUs) > fewGPUs {
		var down, closed []string
		for i := range r.GPUs {
			g := &r.GPUs[i]
			switch {
			case !g.Up:
				down = append(down, g.Node)
			case g.Faulted:
				closed = append(closed, fmt.Sprintf("%s gpu %d", g.Node, g.GPU))
			}
		}
		s.printList("out of service: ", slices.Compact(down))
		s.printList("closed until their jobs have ended, because the MPS server may be broken: ", closed)
	}
	for i := range r.Groups {
		if g := &r.Groups[i]; g.State == job.Released {
			s.printf("about to start: %s %s\n", strings.Join(g.Refs(), ", "), g.Where())
		}
	}
	s.printList("they share a GPU without MPS, so it takes turns: ", r.WithoutMPS)
	for i := range r.Refused {
		s.printf("%s\n", r.Refused[i].String())
	}
	by := map[string][]string{}
	for ref, why := range r.Unmanaged {
		by[why] = append(by[why], ref)
	}
	for _, why := range slices.Sorted(maps.Keys(by)) {
		slices.Sort(by[why])
		s.printList("left to Slurm, "+why+": ", by[why])
	}
}

// printList prints a line of names, or nothing.
func (s *shared) printList(what string, names []string) {
	if len(names) == 0 {
		return
	}
	more := ""
	if n := len(names) - mostListed; n > 0 {
		names, more = names[:mostListed], fmt.Sprintf(" and %d more", n)
	}
	s.printf("%s%s%s\n", what, strings.Join(names, ", "), more)
}

func newPlan(s *shared) *cobra.Command {
	c := &cobra.Command{
		Use:   "plan",
		Short: "What the bridge would change now, without changing it",
		Long: `plan looks at the queue itself and prints the changes that the bridge would send
to Slurm now, one a line, in their order. It changes nothing, needs no daemon and
disturbs none.

An empty plan is the usual one: all that can start has been released.`,
		Args: cobra.NoArgs,
		RunE: s.Configured(func(c *cobra.Command, cfg *config.Config, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
			defer cancel()
			w, err := wire(ctx, cfg, s.Log(), nil, func() (*store.Store, error) { return cli.OpenStore(ctx, cfg) })
			if err != nil {
				return err
			}
			defer w.store.Close()
			preview, err := w.bridge.Preview(ctx)
			if err != nil {
				return err
			}
			r := httpapi.MakePlanReport(preview)
			return s.Show(r, func() { fmt.Fprintln(s.Out, cmp.Or(strings.Join(r.Changes, "\n"), "nothing to change")) })
		}),
	}
	c.Flags().String("policy", "", "policy to plan with, instead of the configured one")
	c.Flags().String("mode", "",
		"active, or shadow: count every job that requests a whole GPU's shares as waiting (default: the configured mode)")
	cli.Values(c, "policy", policy.Names(policy.Live())...)
	cli.Values(c, "mode", string(job.Active), string(job.Shadow))
	return c
}

func newWhy(s *shared) *cobra.Command {
	var verbose bool
	c := &cobra.Command{
		Use:   "why JOB",
		Short: "What a job waits for, with which jobs it was considered, what was done to it",
		Long: `why says in a sentence what a job, waiting, running or ended, waits for, or where and
with whom it runs, when it is expected to end and when plain Slurm would have ended
it, and what came of its runs.

--verbose adds the combinations that were considered for it with their value and the
predicted slowdown, what the guard refused and why, and every change that was made to
it with the values before. --json has all of it.`,
		Example: "  slurmbridge why 4711\n  slurmbridge why 4711_3     a task of an array\n  slurmbridge why --verbose 4711",
		Args:    cobra.ExactArgs(1),
		RunE: s.Configured(func(c *cobra.Command, cfg *config.Config, args []string) error {
			var story journal.Story
			if err := ask(c.Context(), cfg, "/v1/why/"+url.PathEscape(args[0]), &story); err != nil {
				return err
			}
			return s.Show(&story, func() { s.printWhy(cmp.Or(story.Ref, args[0]), &story, verbose) })
		}),
	}
	askFlags(c)
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "also what was considered, refused and changed")
	return c
}

// summary says in one sentence how it is with a job, "" = its outcomes say so.
func summary(ref string, story *journal.Story) string {
	if story.Waits == nil && story.State == "" {
		if len(story.Runs) > 0 || len(story.Groups) == 0 && story.Note == nil {
			return ""
		}
		return "Job " + ref + " has ended, or was cancelled. What it used is known once its node's record has come."
	}
	if story.Waits == nil {
		for _, g := range slices.Backward(story.Groups) {
			for i := range g.Members {
				switch m := &g.Members[i]; {
				case m.Ref != ref || m.State.Final():
				case story.On != nil:
					return story.On.Sentence(ref, m.Predicted)
				case story.State == job.Pending:
					return "Job " + ref + " starts " + g.Where() + "."
				}
			}
		}
		switch {
		case story.On != nil:
			return story.On.Sentence(ref, 0)
		case story.State != job.Pending:
			return "Job " + ref + " is ending."
		case story.Unmanaged != "":
			return "Job " + ref + " waits for its turn in Slurm's queue, like a job of a whole GPU."
		}
		if len(story.Runs) > 0 || story.Note == nil {
			return ""
		}
	}
	return job.Summary(ref, story.Waits, story.Note)
}

func (s *shared) printWhy(ref string, story *journal.Story, verbose bool) {
	text, e := summary(ref, story), story.Note
	if text != "" {
		s.printf("%s\n", text)
	}
	if verbose {
		s.printDetails(ref, story)
	} else {
		if e != nil && text != "" && (story.Waits != nil || story.State != "") {
			s.printEnds(e.PlainEnd, e.ExpectedEnd, e.Known)
		}
		if e != nil {
			s.printIgnored(e)
		}
		if story.Unmanaged != "" {
			s.printf("  left to Slurm: %s\n", story.Unmanaged)
		}
		if n := len(story.Changes); text == "" && len(story.Runs) == 0 && n > 0 {
			s.printf("Job %s was left alone at %s, after %s\n", ref, story.Changes[n-1].At.Local().Format(time.DateTime),
				story.Changes[n-1].Change)
		}
	}
	for i := range story.Runs {
		s.printRun(&story.Runs[i])
	}
	if !verbose {
		return
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

// printDetails prints where a job waits, what was considered for it, and the groups that it was put into.
func (s *shared) printDetails(ref string, story *journal.Story) {
	if p := story.Waits; p != nil && p.Position > 0 {
		s.printf("  place %d of %d that wait; a decision looks at the first %d\n", p.Position, p.Of, p.Window)
	}
	if p := story.Waits; p != nil && p.Gate != "" {
		s.printf("  it is behind gate %s; without the daemon that opens in %.0f s\n", p.Gate, max(0, p.LeaseLeftS))
	}
	if story.Note != nil {
		s.printExplanation(ref, story.Note)
	}
	for i := range story.Groups {
		s.printGroup(ref, &story.Groups[i])
	}
}

func (s *shared) printIgnored(e *job.Explanation) {
	for _, text := range e.Ignored {
		s.printf("  ignored %s\n", text)
	}
}

func (s *shared) printExplanation(ref string, e *job.Explanation) {
	s.printf("the last decision on job %s, %s ago: %s\n", ref, time.Since(e.At).Round(time.Second), e.Status)
	switch {
	case e.AskedMiB > 0:
		s.printf("  it has no profile: it shares, held to the %.0f MiB that its owner says it needs\n", e.AskedMiB)
	case e.App == "" && e.Known:
		s.printf("  an interactive session: batch jobs may join it\n")
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
	s.printIgnored(e)
	for _, c := range e.Considered {
		s.printf("  %s considered %s\n", map[bool]string{true: "*", false: " "}[c.Taken], c)
	}
	for _, r := range e.Vetoes {
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
		if m.Rule != "" {
			own += ", " + comment.Adopted(m)
		}
		switch {
		case m.State.Final():
			own += ", " + string(m.State)
		case m.Ran():
			own += ", running since " + m.Start.Local().Format(time.TimeOnly)
		}
	}
	sharing := "alone"
	if len(others) > 0 {
		sharing = "with " + strings.Join(others, ", ")
	}
	if !plainEnd.IsZero() {
		own += fmt.Sprintf("; expected to end at %s, on plain Slurm at %s", expected.Local().Format(time.TimeOnly),
			plainEnd.Local().Format(time.TimeOnly))
	}
	s.printf("group %d, %s: %s %s%s\n", g.ID, g.Decided.Local().Format(time.DateTime), sharing, g.Where(), own)
}

func (s *shared) printRun(r *history.Run) {
	o := r.Outcome
	s.printf("%s\n", strings.Join(usage.Tell(r), "\n"))
	if o.Suspect != "" {
		s.printf("  sharing may be the reason: %s", o.Suspect)
		if o.Again {
			s.printf("; it was run again, alone")
		} else if !o.Ours && history.Failed(r.State()) {
			s.printf("; --comment=share:retry has such jobs run again, alone")
		}
		s.printf("\n")
	}
	if o.Unserved {
		s.printf("  a program that reads CUDA_VISIBLE_DEVICES as a number, or uses what MPS lacks, fails like that\n")
	}
	if o.NoMPS {
		s.printf("  its application doesn't share from now on: it fails under MPS, and ends well without\n")
	}
	if lent := r.Ending.LentS; lent > 0 {
		s.printf("  its time limit was raised by %s because sharing had slowed it\n", seconds(lent))
	}
	if o.HeldS > 0 {
		s.printf("  the bridge kept it waiting %s longer than it may\n", seconds(o.HeldS))
	}
	for _, kind := range r.Harm() {
		s.printf("  worse off than on plain Slurm: %s\n", kind)
	}
	if o.Cleared {
		s.printf("  it failed alone, too: sharing was not the reason\n")
	}
	if o.Learned {
		s.printf("  the run became part of its application's profile\n")
	}
}
