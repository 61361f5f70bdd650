package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/slurmbridge/chart"
)

// view is what the template shows.
type view struct {
	options
	CSS     template.CSS
	Now     time.Time
	Health  string // "" = well
	Trouble string // what of the page is missing
	Looked  bool   // there was a poll
	*job.Status
	Shadow   bool
	Deciding string
	Lease    string
	GPUCount struct{ Shared, Single, Idle, Down int }
	JobCount struct{ Waiting, Released, Running int }
	Time     *timeline
	Next     int // GPUs to skip for the next page, 0 = there are no more
	On       []onGPU
	Queue    []queued
	Pending  int // jobs in the queue, shown or not
	Users    []userCount
	Slow     slowdowns
	Left     []left
	HourSet  []int
}

type onGPU struct {
	Name, What string
	Jobs       []jobOn
}

type jobOn struct {
	Ref, User, App, For, Left string
	Shares                    int
}

// queued is one waiting job.
type queued struct {
	Ref, User, Account, App, Waits, Why string
	Latest                              string
	Considered                          []string
	Refused                             []job.Refusal
}

type userCount struct {
	User             string
	Waiting, Running int
}

type left struct{ Ref, Why string }

// slowdowns sums up the runs that shared a GPU lately.
type slowdowns struct {
	Picture             template.HTML
	Shared              int
	Mean, Worst         float64
	Predicted           float64
	Kept, Broken, Fails int
	Harm                history.Harmed
	Turn                history.Turn
}

func (p *pages) view(ctx context.Context, o options) *view {
	now := p.server.Now()
	v := &view{options: o, CSS: p.css, Now: now, Status: public(p.server.Status()), HourSet: []int{1, 6, 24, 72}}
	if err := p.server.Health(); err != nil {
		v.Health = err.Error()
	}
	if v.Status == nil || v.Snap == nil {
		return v
	}
	st := v.Status
	v.Looked, v.Shadow = true, st.Mode == job.Shadow
	v.Deciding = st.Policy
	if st.Model != "" {
		v.Deciding += ", model " + st.Model
	}
	if st.Objective != "" {
		v.Deciding += " for the " + st.Objective
	}
	v.Lease = span2(st.Lease)
	past := p.past(ctx, now, o.Hours)
	v.Trouble = past.trouble
	if st.Snap.PrivateJobs {
		past.runs, past.outcomes = hiddenRuns(past.runs), hiddenOutcomes(past.outcomes)
	}
	w := window{from: now.Add(-time.Duration(o.Hours) * time.Hour), now: now}
	w.to = now.Add(max(w.now.Sub(w.from)/4, 15*time.Minute))
	c := layOut(st, past.runs, w)
	keys := c.busiest(o.GPUs, o.Skip)
	v.Time = c.draw(keys, w)
	if o.Skip+len(keys) < len(c.order) {
		v.Next = o.Skip + len(keys)
	}
	v.count(c)
	v.on(c, keys, st)
	v.queue(st, o.Jobs)
	v.slow(past.outcomes)
	for _, ref := range slices.Sorted(maps.Keys(st.Unmanaged)) {
		if len(v.Left) < 20 {
			v.Left = append(v.Left, left{ref, st.Unmanaged[ref]})
		}
	}
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

// on lists the jobs on the GPUs that are drawn.
func (v *view) on(c *cluster, keys []gpuKey, st *job.Status) {
	ends := map[string]time.Time{}
	for i := range st.Snap.Jobs {
		if j := &st.Snap.Jobs[i]; j.State != job.Pending {
			ends[j.Ref] = expectedEnd(st, j)
		}
	}
	for _, k := range keys {
		g := c.state[k]
		row := onGPU{Name: fmt.Sprintf("%s gpu %d", k.node, k.gpu), What: onIt(g)}
		for _, j := range g.Jobs {
			at := jobOn{Ref: j.Ref, User: j.User, App: j.App, Shares: j.Shares, For: span2(time.Duration(j.For * float64(time.Second)))}
			if end := ends[j.Ref]; end.After(v.Now) {
				at.Left = span2(end.Sub(v.Now))
			}
			row.Jobs = append(row.Jobs, at)
		}
		v.On = append(v.On, row)
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
	users := map[string]*userCount{}
	for i := range st.Snap.Jobs {
		j := &st.Snap.Jobs[i]
		u := users[j.User]
		if u == nil {
			u = &userCount{User: j.User}
			users[j.User] = u
		}
		if j.State != job.Pending {
			u.Running++
			v.JobCount.Running++
			continue
		}
		u.Waiting++
		v.Pending++
		if sent[j.Ref] != nil {
			v.JobCount.Released++
		} else {
			v.JobCount.Waiting++
		}
		if len(v.Queue) < limit {
			v.Queue = append(v.Queue, v.waits(st, j, sent[j.Ref]))
		}
	}
	v.Users = slices.SortedFunc(func(yield func(userCount) bool) {
		for _, u := range users {
			if !yield(*u) {
				return
			}
		}
	}, func(a, b userCount) int {
		return cmp.Or(cmp.Compare(b.Waiting+b.Running, a.Waiting+a.Running), cmp.Compare(a.User, b.User))
	})
	v.Users = v.Users[:min(len(v.Users), 12)]
}

// What a note's details are cut to.
const (
	mostConsidered = 4
	mostRefused    = 4
)

func (v *view) waits(st *job.Status, j *job.Job, g *job.Group) queued {
	q := queued{Ref: j.Ref, User: j.User, Account: j.Account, App: st.Apps[j.Ref].Key, Waits: span2(st.Snap.At.Sub(j.Submit))}
	if n := st.Explanations[j.Ref]; n != nil {
		q.Why, q.App = n.Status, n.App
		if n.App != "" && !n.Known {
			q.Why += "; its application isn't known yet and runs alone first"
		}
		q.Latest = span2(time.Duration(n.LatestDelayS * float64(time.Second)))
		for _, c := range n.Considered[:min(len(n.Considered), mostConsidered)] {
			text := fmt.Sprintf("%s on %s gpu %d: value %.3g", strings.Join(c.Jobs, " + "), c.Node, c.GPU, c.Value)
			for i, s := range c.Slowdown {
				text += map[bool]string{true: ", slowdown ", false: " / "}[i == 0] + fmt.Sprintf("%.2f", s)
			}
			if c.Taken {
				text += " — taken"
			}
			q.Considered = append(q.Considered, text)
		}
		q.Refused = n.Refused[:min(len(n.Refused), mostRefused)]
	}
	switch {
	case g != nil && g.Node == "":
		q.Why = "waits for its turn among jobs that don't share"
	case g != nil:
		q.Why = fmt.Sprintf("starts now on %s gpu %d", g.Node, g.GPU)
	case st.Unmanaged[j.Ref] != "":
		q.Why = "left to Slurm: " + st.Unmanaged[j.Ref]
	case q.Why != "":
	case j.Request.Kind == job.WholeGPU:
		q.Why = "wants whole GPUs: Slurm decides" + reason(j)
	case j.Priority == 0:
		q.Why = "it is held"
	case j.Reason == "BeginTime":
		q.Why = "its begin time has not come"
	case j.Dependency.Raw != "" && !v.gated(st, j):
		q.Why = "waits for " + j.Dependency.Raw
	default:
		q.Why = "others come first" + reason(j)
	}
	return q
}

// gated reports whether a job depends on nothing but the bridge.
func (v *view) gated(st *job.Status, j *job.Job) bool {
	return st.Gate != "" && j.Dependency.Only("after", st.Gate)
}

// reason is Slurm's reason for keeping a job waiting, where that isn't the gate.
func reason(j *job.Job) string {
	if j.Reason == "" || j.Reason == "None" || j.Reason == "Dependency" {
		return ""
	}
	return " (" + j.Reason + ")"
}

func pointers(all []history.Outcome) []*history.Outcome {
	out := make([]*history.Outcome, len(all))
	for i := range all {
		out[i] = &all[i]
	}
	return out
}

// slow sums up the outcomes of runs that shared a GPU.
func (v *view) slow(all []history.Outcome) {
	s := &v.Slow
	plot := &chart.Scatter{Title: "Slowdown, predicted and measured", X: "predicted", Y: "measured"}
	predicted := 0
	runs := pointers(all)
	s.Harm, s.Turn = history.CountHarm(runs), history.CountTurn(runs)
	for i := len(all) - 1; i >= 0; i-- {
		o := &all[i]
		if o.Suspect != "" {
			s.Fails++
		}
		if !o.Shared() || !(o.Slowdown > 0) {
			continue
		}
		s.Shared++
		s.Mean += o.Slowdown
		s.Worst = max(s.Worst, o.Slowdown)
		switch {
		case o.Broken:
			s.Broken++
		case o.Contract > 0:
			s.Kept++
		}
		if !(o.Predicted > 0) {
			continue
		}
		predicted++
		s.Predicted += o.Predicted
		if len(plot.Points) < mostDots {
			plot.Points = append(plot.Points, chart.Point{
				X: o.Predicted, Y: o.Slowdown, Bad: o.Broken,
				Label: fmt.Sprintf("%s: predicted %.2f, measured %.2f", describe(o.Ref, o.User, o.App), o.Predicted, o.Slowdown),
			})
		}
	}
	if s.Shared > 0 {
		s.Mean /= float64(s.Shared)
	}
	if predicted > 0 {
		s.Predicted /= float64(predicted)
		plot.Desc = fmt.Sprintf("%d runs, on average %.2f predicted and %.2f measured", len(plot.Points), s.Predicted, s.Mean)
		s.Picture = plot.HTML()
	}
}
