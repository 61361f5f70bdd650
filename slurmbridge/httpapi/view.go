package httpapi

import (
	"context"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/chart"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/receipt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
)

type view struct {
	options
	Now     time.Time
	Health  string // "" = well
	Trouble string // what of the page is missing
	Looked  bool   // there was a poll
	Begins  bool   // the first poll is on its way
	Private bool   // Slurm hides other users' jobs
	*job.Status
	Shadow   bool
	Lease    string
	GPUCount struct{ Shared, Single, Idle, Down int }
	JobCount struct{ Waiting, Released, Running int }
	Time     template.HTML
	Shown    int // GPUs
	All      int
	Next     int // GPUs to skip for the next page, 0 = there are no more
	Queue    []queued
	Pending  int // jobs in the queue, shown or not
	// Slow sums up the runs that shared a GPU lately, Predicted is the mean of what was predicted of those in the Picture.
	Slow      *receipt.Receipt
	Predicted float64
	Picture   template.HTML
	HourSet   []int
}

// queued is a waiting job, with why it waits.
type queued struct {
	*job.Job
	App, Why string
	Note     *job.Explanation // of the last decision, nil = there is none
}

func (p *pages) view(ctx context.Context, o options, m *mask) *view {
	now := p.Now()
	v := &view{options: o, Now: now, Status: m.status(p.Status()), Private: !m.all, HourSet: hourSet}
	if err := p.Health(); err != nil {
		v.Health = err.Error()
	}
	if v.Status == nil && now.Sub(p.began) <= p.Fresh {
		v.Health, v.Begins = "", true
	}
	if v.Status == nil || v.Snap == nil {
		return v
	}
	st := v.Status
	v.Looked, v.Shadow = true, st.Mode == job.Shadow
	v.Lease = span(st.Lease)
	past := p.past(ctx, now, o.Hours)
	v.Trouble = past.trouble
	m.past(&past)
	c := layOut(st, past.runs, now)
	keys := c.busiest(o.GPUs, o.Skip)
	v.Time = c.draw(keys, now.Add(-time.Duration(o.Hours)*time.Hour), now).HTML()
	if v.Shown, v.All = len(keys), len(c.order); o.Skip+v.Shown < v.All {
		v.Next = o.Skip + v.Shown
	}
	v.count(c)
	v.queue(st, o.Jobs)
	v.slow(past.runs)
	return v
}

func (v *view) count(c *cluster) {
	for _, g := range c.state {
		switch n := len(g.Jobs); {
		case !g.Up:
			v.GPUCount.Down++
		case n == 0:
			v.GPUCount.Idle++
		case n == 1:
			v.GPUCount.Single++
		default:
			v.GPUCount.Shared++
		}
	}
}

// queue lists the waiting jobs of highest priority, each with why it waits.
func (v *view) queue(st *job.Status, limit int) {
	sent := map[string]*job.Group{}
	for i := range st.Groups {
		for _, ref := range st.Groups[i].Refs() {
			sent[ref] = &st.Groups[i]
		}
	}
	for i := range st.Snap.Jobs {
		j := &st.Snap.Jobs[i]
		switch {
		case j.State != job.Pending:
			v.JobCount.Running++
			continue
		case sent[j.Ref] != nil:
			v.JobCount.Released++
		default:
			v.JobCount.Waiting++
		}
		v.Pending++
		if len(v.Queue) < limit && !strings.HasPrefix(j.Ref, other) {
			v.Queue = append(v.Queue, v.waits(st, j, sent[j.Ref]))
		}
	}
}

func (v *view) waits(st *job.Status, j *job.Job, g *job.Group) queued {
	q := queued{Job: j, App: st.Apps[j.Ref].Key, Note: st.Explanations[j.Ref]}
	if q.Note != nil {
		q.Why, q.App = q.Note.Status, q.Note.App
	}
	switch {
	case g != nil && g.Node == "":
		q.Why = "waits for its turn among jobs that don't share"
	case g != nil:
		q.Why = "starts now " + g.Where()
	case st.Unmanaged[j.Ref] != "":
		q.Why = "left to Slurm: " + st.Unmanaged[j.Ref]
	case q.Why != "":
	case j.Request.Kind == job.WholeGPU:
		q.Why = "wants whole GPUs: Slurm decides" + reason(j)
	case j.Priority == 0:
		q.Why = "it is held"
	case j.Reason == "BeginTime":
		q.Why = "its begin time has not come"
	case j.Dependency.Raw != "" && !(st.Gate != "" && j.Dependency.Only("after", st.Gate)):
		q.Why = "waits for " + j.Dependency.Raw
	default:
		q.Why = "others come first" + reason(j)
	}
	return q
}

// reason is Slurm's reason for keeping a job waiting, where that isn't the gate.
func reason(j *job.Job) string {
	if j.Reason == "" || j.Reason == "None" || j.Reason == "Dependency" {
		return ""
	}
	return " (" + j.Reason + ")"
}

func (v *view) slow(all []history.Run) {
	v.Slow = receipt.Sharing(history.Outcomes(all))
	v.Picture = picture(v.Slow.Points)
	for _, p := range v.Slow.Points {
		v.Predicted += p.Predicted / float64(len(v.Slow.Points))
	}
}

// picture draws the slowdowns of the latest runs that shared a GPU, predicted and measured.
func picture(points []*history.Outcome) template.HTML {
	var dots []chart.Point
	for _, o := range points[max(0, len(points)-mostPoints):] {
		dots = append(dots, chart.Point{
			X: o.Predicted, Y: o.Slowdown, Bad: o.Broken, Label: fmt.Sprintf("%s: predicted %.2f, measured %.2f",
				describe(o.Ref, o.User, o.App), o.Predicted, o.Slowdown),
		})
	}
	return chart.Slowdowns(dots)
}

// PositionOf returns the place of a pending job in the queue, as of the last poll, or why the rule that matches it
// doesn't make it share; nil: the job doesn't wait for the bridge.
func PositionOf(st *job.Status, ref string) *job.QueuePosition {
	if st.Snap == nil {
		return nil
	}
	in := &plan.Input{Snap: st.Snap, Shadow: st.Mode == job.Shadow}
	besides := func(j *job.Job) string {
		if why := in.WaitsBesides(j); why != "" || st.Plan == nil {
			return why
		}
		return st.Plan.Limited[j.Ref]
	}
	sent := map[string]bool{} // to a GPU, by the plan that followed the poll or before
	for i := range st.Groups {
		for _, ref := range st.Groups[i].Refs() {
			sent[ref] = true
		}
	}
	var queue []*job.Job
	var found *job.Job
	for i := range st.Snap.Jobs {
		j := &st.Snap.Jobs[i]
		if j.State != job.Pending || sent[j.Ref] || !in.WaitsForBridge(j) ||
			j.Request.Kind != job.Shares && !release.Behind(in.Snap.Gates, j) {
			continue
		}
		if j.Ref == ref {
			found = j
		}
		if besides(j) == "" {
			queue = append(queue, j)
		}
	}
	if found == nil && st.Plan != nil && st.Plan.NotAdopted[ref] != "" {
		return &job.QueuePosition{At: st.At, NotAdopted: st.Plan.NotAdopted[ref].String()}
	}
	if found == nil {
		return nil
	}
	slices.SortFunc(queue, plan.ByPriority)
	var start time.Time
	if st.Plan != nil {
		start = st.Plan.Starts[ref]
	}
	return &job.QueuePosition{
		ExpectedStart: start, At: st.At, Gate: st.Gate, LeaseLeftS: st.Lease.Seconds(), Window: st.Window,
		Holds: besides(found), Position: slices.Index(queue, found) + 1, Of: len(queue),
	}
}
